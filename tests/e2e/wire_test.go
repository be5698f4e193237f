package e2e

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
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

// TestHugeDescriptors: full queues of commands with descriptors of 4 GiB, or 16 MiB over RDMA, take
// no memory (CVE-2026-80789, S07).
func TestHugeDescriptors(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		c := h.Dial(v)
		var queues []*host.Queue
		for qid := uint16(1); qid <= 4; qid++ {
			queues = append(queues, h.Open(c, qid, 128))
		}
		usage, heap := fmt.Sprint(mem.Usage()), heapInUse()
		for _, q := range queues {
			submitHuge(t, q, v)
		}
		for _, q := range queues {
			done := make([]host.Completion, 128)
			for got := 0; got < 127; {
				n := testutil.Value(q.Poll(done))(h.T)
				for i := range done[:n] {
					if st := done[i].Status().Code(); st != nvme.DataSGLLengthInvalid {
						t.Fatal(done[i].Status())
					}
				}
				if got += n; n == 0 {
					h.Must(q.Wait(time.Second))
				}
			}
		}
		if after := fmt.Sprint(mem.Usage()); after != usage {
			t.Errorf("memory:\n%s\nbefore:\n%s", after, usage)
		}
		if after := heapInUse(); after > heap+8<<20 {
			t.Errorf("%d MiB of heap, %d before", after>>20, heap>>20)
		}
	})
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// submitHuge fills a queue of 128 entries with reads and writes of 8 blocks with descriptors of the
// largest possible length.
func submitHuge(t *testing.T, q *host.Queue, v Variant) {
	for i := range 127 {
		op := new(host.Op)
		op.Read(1, 0, 8, nil)
		op.SQE.SetOpcode([]nvme.Opcode{nvme.NVMRead, nvme.NVMWrite}[i%2])
		op.Raw = true
		op.SQE.SetFlags(1 << 6)
		if v.IsRDMA {
			op.SQE.SGL1().SetKeyed(nvme.SGLSubtypeAddress, 4096, 0xFFFFFF, 1)
		} else {
			op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0,
				0xFFFFFFFF)
		}
		testutil.Value(q.Submit(op))(t)
	}
}
