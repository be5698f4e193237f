package e2e

import (
	"fmt"
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

// wire returns a TCP connection to the target on which a test sends arbitrary bytes.
func (h *Env) wire() *hosttest.Wire {
	h.T.Helper()
	c := testutil.Value(net.Dial("tcp", h.Addr(nvme.TransportTCP).String()))(h.T)
	h.Must(c.SetDeadline(time.Now().Add(testutil.Patience)))
	h.T.Cleanup(func() { _ = c.Close() })
	return &hosttest.Wire{Conn: c}
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
	w, o := h.wire(), Variant{}.HostOptions()
	op := host.ConnectCommand(0, 32, &o, nvme.CNTLIDDynamic)
	req := pdu.ICReq(&w.P, 1)
	testutil.Value(w.Write(append(req[:], hosttest.Bare(op, nvme.ConnectDataSize)...)))(t)
	testutil.Value(w.Take(pdu.TypeICResp))(t)
	r2t := (*pdu.Data)(testutil.Value(w.Take(pdu.TypeR2T))(t))
	testutil.MustTrue(t, r2t.DATAO() == 0 && r2t.DATAL() == nvme.ConnectDataSize, "R2T %x", r2t)
	for off, flags := range []pdu.Flags{0: 0, 1: pdu.LastPDU} { // in two parts
		part := op.Data[off*512:][:512]
		testutil.Value(w.Write(w.H2CData(flags, 0, r2t.TTAG(), off*512, part)))(t)
	}
	resp := (*pdu.CapsuleResp)(testutil.Value(w.Take(pdu.TypeCapsuleResp))(t))
	testutil.Equal(t, resp.CQE().Status(), nvme.Success, "")
	h.wantLeft(1, 1)
}

// readAndWait sends reads of 1 MiB of namespace 1, one after another, on I/O queue qid of a
// controller, and receives none of the data.
func (h *Env) readAndWait(c *host.Controller, qid uint16, from, n int) {
	h.T.Helper()
	w := h.wire()
	h.Must(w.Conn.(*net.TCPConn).SetReadBuffer(4096))
	testutil.Value(w.Associate(qid, 32, Variant{}.HostOptions(), c.CNTLID()))(h.T)
	var all []byte
	for i := range n {
		op := new(host.Op)
		op.Read(1, uint64(from+i)<<20>>9, 1<<20>>9, nil)
		op.SQE.SetCID(uint16(i))
		all = append(all, hosttest.Bare(op, 1<<20)...)
	}
	testutil.Value(w.Write(all))(h.T)
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
		h.readAndWait(c, uint16(i+1), i*16, 16)
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
			collectAll(h.T, q, nvme.Success)
			held = h.Fabric.Inject(verbstest.Fault{
				Host: "target", Ops: verbstest.OpWrite, Times: -1, Hold: true,
			})
		}
	}
	h.T.Cleanup(func() {
		held.Release()
		collectAll(h.T, q, nvme.Success)
	})
	_, err := q.Poll(make([]host.Completion, 1)) // sends the submitted commands
	h.Must(err)
	h.Ping(c)
	h.Until("the WRITEs are held", func() bool { return held.Fired() > 0 })
}
