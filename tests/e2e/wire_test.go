package e2e

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// wire is a connection to the target over TCP whose bytes a test writes itself.
type wire struct {
	*net.TCPConn
	t *testing.T
	p pdu.Params
}

func (r *rig) wire() *wire {
	r.t.Helper()
	c, err := net.Dial("tcp", r.addrs[nvme.TransportTCP].String())
	r.must(err)
	r.must(c.SetDeadline(time.Now().Add(patience)))
	r.t.Cleanup(func() { _ = c.Close() })
	return &wire{c.(*net.TCPConn), r.t, pdu.Params{}}
}

// take reads a PDU of type want.
func (w *wire) take(want pdu.Type) []byte {
	w.t.Helper()
	b := make([]byte, pdu.HeaderSize)
	if _, err := io.ReadFull(w, b); err != nil {
		w.t.Fatal(err)
	}
	h := (*pdu.Header)(b)
	b = append(b, make([]byte, h.PLEN()-pdu.HeaderSize)...)
	if _, err := io.ReadFull(w, b[pdu.HeaderSize:]); err != nil || h.Type() != want {
		w.t.Fatalf("got a %v (%v), want %v", h.Type(), err, want)
	}
	return b
}

// write sends bytes.
func (w *wire) write(b []byte) {
	w.t.Helper()
	if _, err := w.Write(b); err != nil {
		w.t.Fatal(err)
	}
}

// greeting is an ICReq without digests.
func greeting() []byte {
	var r pdu.ICReq
	r.Set(&pdu.Params{}, 1)
	return r[:]
}

// connectCapsule is the Connect command of an admin queue, with its data in the capsule or to be
// asked for.
func connectCapsule(inCapsule bool) (capsule, data []byte) {
	o := way{}.hostOptions()
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

// wantNothingLeft waits until only the given numbers of controllers and queues are left.
func (r *rig) wantNothingLeft(controllers, queues int) {
	r.t.Helper()
	r.until(fmt.Sprintf("%d controllers and %d queues are left", controllers, queues), func() bool {
		return len(r.target.Controllers()) == controllers && r.target.Sessions() == queues &&
			r.transports[0].(*tcp.Transport).Usage().Connections == queues
	})
}

// TestConnectCutShort: a host that gives up at any byte of ICReq and Connect leaves no controller
// (CVE-2024-42152, P30).
func TestConnectCutShort(t *testing.T) {
	r := newRig(t, options{})
	steady := r.connect(ways[0])
	capsule, _ := connectCapsule(true)
	all := append(greeting(), capsule...)
	for n := range len(all) + 1 {
		w := r.wire()
		w.write(all[:n])
		if n%2 == 0 {
			r.must(w.SetLinger(0)) // RST
		}
		r.must(w.Close())
	}
	r.wantNothingLeft(1, 1)
	r.ping(steady)
}

// TestPortScanner: what is not NVMe/TCP leaves no connection behind (P03).
func TestPortScanner(t *testing.T) {
	r := newRig(t, options{tcp: tcp.Config{LingerTimeout: 200 * time.Millisecond}})
	steady := r.connect(ways[0])
	for range 50 {
		w := r.wire()
		b := make([]byte, 128)
		_, _ = rand.Read(b)
		w.write(b)
		if b[0]%2 == 0 {
			r.must(w.Close())
		}
	}
	r.wantNothingLeft(1, 1)
	r.ping(steady)
}

// TestConnectDataByR2T: the data of Connect may be outside of the capsule; the host that keeps it
// back is cut off (F20).
func TestConnectDataByR2T(t *testing.T) {
	t.Parallel() // it mostly waits
	r := newRig(t, options{tcp: tcp.Config{ConnectTimeout: 3 * time.Second}})
	capsule, data := connectCapsule(false)
	ask := func() (*wire, uint16) {
		w := r.wire()
		w.write(append(greeting(), capsule...))
		w.take(pdu.TypeICResp)
		r2t := (*pdu.R2T)(w.take(pdu.TypeR2T))
		if r2t.R2TO() != 0 || r2t.R2TL() != nvme.ConnectDataSize {
			t.Fatalf("R2T %x", r2t)
		}
		return w, r2t.TTAG()
	}
	w, ttag := ask()
	for off, flags := range []pdu.Flags{0: 0, 1: pdu.LastPDU} { // in two parts
		var h pdu.Data
		h.SetH2C(&w.p, flags, 0, ttag, uint32(off)*512, 512)
		w.write(append(h[:], data[off*512:][:512]...))
	}
	if st := (*pdu.CapsuleResp)(w.take(pdu.TypeCapsuleResp)).CQE().Status(); !st.OK() {
		t.Error(st)
	}
	late, _ := ask()
	if _, err := io.Copy(io.Discard, late); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the host that keeps its data back is not cut off")
	}
	r.wantNothingLeft(1, 1)
}

// TestHugeDescriptors: full queues of commands that want 4 GiB, or 16 MiB over RDMA, cost no memory
// (CVE-2026-80789, S07).
func TestHugeDescriptors(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		c := r.connect(w)
		var queues []*host.Queue
		for qid := uint16(1); qid <= 4; qid++ {
			queues = append(queues, r.open(c, qid, 128))
		}
		usage, heap := fmt.Sprint(mem.Usage()), heapInUse()
		for _, q := range queues {
			submitHuge(t, q, w)
		}
		for _, q := range queues {
			done := make([]host.Completion, 128)
			for got := 0; got < 127; {
				n, err := q.Poll(done)
				r.must(err)
				for i := range done[:n] {
					if st := done[i].Status().Code(); st != nvme.DataSGLLengthInvalid {
						t.Fatal(done[i].Status())
					}
				}
				if got += n; n == 0 {
					r.must(q.Wait(time.Second))
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

// submitHuge fills a queue of 128 entries with reads and writes of 8 blocks whose descriptors name
// as much as they can.
func submitHuge(t *testing.T, q *host.Queue, w way) {
	for i := range 127 {
		op := new(host.Op)
		op.Read(1, 0, 8, nil)
		op.SQE.SetOpcode([]nvme.Opcode{nvme.NVMRead, nvme.NVMWrite}[i%2])
		op.Raw = true
		op.SQE.SetFlags(1 << 6)
		if w.isRDMA {
			op.SQE.SGL1().SetKeyed(nvme.SGLSubtypeAddress, 4096, 0xFFFFFF, 1)
		} else {
			op.SQE.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0,
				0xFFFFFFFF)
		}
		if _, err := q.Submit(op); err != nil {
			t.Fatal(err)
		}
	}
}
