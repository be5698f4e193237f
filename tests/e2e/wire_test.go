package e2e

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// wire is a TCP connection to the target on which a test sends arbitrary bytes.
type wire struct {
	*net.TCPConn
	t *testing.T
	p pdu.Params
}

func (h *Env) wire() *wire {
	h.T.Helper()
	c := testutil.Value(net.Dial("tcp", h.Addr(nvme.TransportTCP).String()))(h.T)
	h.Must(c.SetDeadline(time.Now().Add(testutil.Patience)))
	h.T.Cleanup(func() { _ = c.Close() })
	return &wire{c.(*net.TCPConn), h.T, pdu.Params{}}
}

// take receives a PDU of type want.
func (w *wire) take(want pdu.Type) []byte {
	w.t.Helper()
	b := make([]byte, pdu.HeaderSize)
	testutil.Value(io.ReadFull(w, b))(w.t)
	head := (*pdu.Header)(b)
	b = append(b, make([]byte, head.PLEN()-pdu.HeaderSize)...)
	if _, err := io.ReadFull(w, b[pdu.HeaderSize:]); err != nil || head.Type() != want {
		w.t.Fatalf("got a %v (%v), want %v", head.Type(), err, want)
	}
	return b
}

// write sends bytes.
func (w *wire) write(b []byte) {
	w.t.Helper()
	testutil.Value(w.Write(b))(w.t)
}

// greeting is an ICReq without digests.
func greeting() []byte {
	req := pdu.ICReq(&pdu.Params{}, 1)
	return req[:]
}

// connectCapsule returns the Connect command of an admin queue, with in-capsule data or with data
// for an R2T.
func connectCapsule(inCapsule bool) (capsule, data []byte) {
	o := Variant{}.HostOptions()
	op := host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic)
	op.SQE.SetFlags(1 << 6)
	var c pdu.CapsuleCmd
	if !inCapsule {
		op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0,
			nvme.ConnectDataSize)
		c.Set(&pdu.Params{}, 0)
		*c.SQE() = op.SQE
		return c[:], op.Data
	}
	op.SQE.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, nvme.ConnectDataSize)
	c.Set(&pdu.Params{}, nvme.ConnectDataSize)
	*c.SQE() = op.SQE
	return append(c[:], op.Data...), nil
}

// wantLeft waits until only these numbers of controllers and queues are left.
func (h *Env) wantLeft(controllers, queues int) {
	h.T.Helper()
	h.Until(fmt.Sprintf("%d controllers and %d queues are left", controllers, queues), func() bool {
		return len(h.Target.Controllers()) == controllers && h.Target.Sessions() == queues &&
			h.Server.Transport(nvme.TransportTCP).(*tcp.Transport).Usage().Connections == queues
	})
}

// TestConnectDataByR2T: the data of Connect may be sent in answer to an R2T (F20).
func TestConnectDataByR2T(t *testing.T) {
	h := New(t, Options{})
	capsule, data := connectCapsule(false)
	w := h.wire()
	w.write(append(greeting(), capsule...))
	w.take(pdu.TypeICResp)
	r2t := (*pdu.Data)(w.take(pdu.TypeR2T))
	testutil.MustTrue(t, r2t.DATAO() == 0 && r2t.DATAL() == nvme.ConnectDataSize, "R2T %x", r2t)
	for off, flags := range []pdu.Flags{0: 0, 1: pdu.LastPDU} { // in two parts
		var head pdu.Data
		head.SetH2C(&w.p, flags, 0, r2t.TTAG(), uint32(off)*512, 512)
		w.write(append(head[:], data[off*512:][:512]...))
	}
	testutil.Equal(t, (*pdu.CapsuleResp)(w.take(pdu.TypeCapsuleResp)).CQE().Status(), nvme.Success,
		"")
	h.wantLeft(1, 1)
}

// ioWire connects I/O queue qid of a controller, on which a test sends arbitrary bytes.
func (h *Env) ioWire(c *host.Controller, qid uint16, size int) *wire {
	h.T.Helper()
	w := h.wire()
	h.Must(w.SetReadBuffer(4096))
	o := Variant{}.HostOptions()
	op := host.ConnectCommand(qid, size, &o, c.CNTLID())
	op.SQE.SetFlags(1 << 6)
	op.SQE.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, nvme.ConnectDataSize)
	var capsule pdu.CapsuleCmd
	capsule.Set(&w.p, nvme.ConnectDataSize)
	*capsule.SQE() = op.SQE
	w.write(append(append(greeting(), capsule[:]...), op.Data...))
	w.take(pdu.TypeICResp)
	testutil.MustEqual(h.T, (*pdu.CapsuleResp)(w.take(pdu.TypeCapsuleResp)).CQE().Status(),
		nvme.Success, "I/O queue %d", qid)
	return w
}

// readAndWait sends reads of 1 MiB of namespace 1, one after another, and receives none of the
// data.
func (w *wire) readAndWait(from, n int) {
	w.t.Helper()
	var all []byte
	for i := range n {
		var c pdu.CapsuleCmd
		c.Set(&w.p, 0)
		op := new(host.Op)
		op.Read(1, uint64(from+i)<<20>>9, 1<<20>>9, nil)
		op.SQE.SetFlags(1 << 6)
		op.SQE.SetCID(uint16(i))
		op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, 1<<20)
		*c.SQE() = op.SQE
		all = append(all, c[:]...)
	}
	w.write(all)
}

// slowSize is the size of the namespace in use.
const slowSize = 64 << 20

// TestSlowReaders: hosts that do not receive the data of their reads of a RAM namespace do not stop
// writes of another host to the same blocks, although there is no memory to copy the data to.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]func(h *Env){"tcp": unreadTCP, "rdma": unreadRDMA} {
		t.Run(name, func(t *testing.T) {
			h := New(t, Options{Memory: 16, TCP: func(c *tcp.Config) {
				c.SendTimeout, c.MemoryTimeout = time.Hour, time.Hour
			}, RDMA: func(c *rdma.Config) {
				c.SendTimeout, c.MemoryTimeout = time.Hour, time.Hour
			}})
			victim := h.Dial(Plain[0])
			q := h.Open(victim, 1, 32)
			ctx := testutil.Context(t)
			big, small := h.Buffer(victim, 1<<20), h.Buffer(victim, 4096)
			for off := 0; off < slowSize; off += 1 << 20 {
				h.Must(hosttest.Write(ctx, q, 1, uint64(off>>9), 1<<20>>9, big, 0))
			}
			slow(h)
			for off := 0; off < slowSize; off += 16 << 10 {
				testutil.MustEqual(t, hosttest.Write(ctx, q, 1, uint64(off>>9), 8, small, 0), nil,
					"a write at %d", off)
			}
		})
	}
}

// unreadTCP reads the whole namespace and receives none of it from its sockets.
func unreadTCP(h *Env) {
	c := h.Dial(Plain[0])
	for i := range 4 {
		h.ioWire(c, uint16(i+1), 32).readAndWait(i*16, 16)
	}
	h.Ping(c)
}

// unreadRDMA does the same with RDMA WRITEs that are not acknowledged before the end of the test.
func unreadRDMA(h *Env) {
	c := h.Dial(Plain[1])
	q := h.Open(c, 1, 128)
	b := h.Buffer(c, 1<<20)
	var held *verbstest.Injection
	for range 2 { // at first, memory is registered
		for off := uint64(0); off < slowSize; off += 1 << 20 {
			op := new(host.Op)
			op.Read(1, off>>9, 1<<20>>9, b)
			testutil.Value(q.Submit(op))(h.T)
		}
		if held == nil {
			h.finish(q, slowSize>>20)
			held = h.Fabric.Inject(verbstest.Fault{
				Host: "target", Ops: verbstest.OpWrite, Times: -1, Hold: true,
			})
		}
	}
	h.T.Cleanup(func() {
		held.Release()
		h.finish(q, slowSize>>20)
	})
	_, err := q.Poll(make([]host.Completion, 1)) // sends the submitted commands
	h.Must(err)
	h.Ping(c)
	h.Until("the WRITEs are held", func() bool { return held.Fired() > 0 })
}

// finish waits for n successful commands.
func (h *Env) finish(q *host.Queue, n int) {
	h.T.Helper()
	done := make([]host.Completion, n)
	for n > 0 {
		got := testutil.Value(q.Poll(done))(h.T)
		for i := range done[:got] {
			testutil.Equal(h.T, done[i].Status(), nvme.Success, "")
		}
		if n -= got; got == 0 {
			h.Must(q.Wait(testutil.Patience))
		}
	}
}
