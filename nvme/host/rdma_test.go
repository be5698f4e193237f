package host

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func connectRDMA(t *testing.T, f *fakeRDMA, size int) (*Controller, *Queue) {
	t.Helper()
	c, q := connectQueue(t, RDMA{Provider: f.fab.Provider("host"), Addr: f.addr}, testOptions(),
		size)
	t.Cleanup(func() { testutil.Check(t, q.Close()) })
	return c, q
}

func TestRDMAReadWrite(t *testing.T) {
	f := newFakeRDMA(t)
	c, q := connectRDMA(t, f, 16)
	ctx := testutil.Context(t)
	buf := testutil.Value(c.Map(2 << 20))(t)
	for _, n := range []int{512, 4096, 8192, 1 << 20} {
		w, r := buf[:n], buf[1<<20:][:n]
		for i := range w {
			w[i] = byte(i*31 + n>>9)
		}
		testutil.Must(t, q.Write(ctx, 1, 5, uint32(n/512), w, 0))
		testutil.Must(t, q.Read(ctx, 1, 5, uint32(n/512), r))
		testutil.MustTrue(t, bytes.Equal(w, r), "%d bytes differ", n)
	}
	testutil.MustTrue(t, q.Read(ctx, 1, 0, 32, make([]byte, 16384)) != nil,
		"read into memory that is not registered")
	small := make([]byte, 512)
	if err := q.Read(ctx, 1, 5, 1, small); err != nil || !bytes.Equal(small, buf[:512]) {
		t.Fatalf("bounced read: %v", err)
	}
	testutil.Value(c.Identify(ctx, nvme.CNSActiveNamespaces, 0, 0))(t)
}

func TestRDMAPipeline(t *testing.T) {
	f := newFakeRDMA(t)
	c, q := connectRDMA(t, f, 16)
	buf := testutil.Value(c.Map(16 * 4096))(t)
	var op Op
	done := make([]Completion, 4)
	for range 50 {
		for i := 0; q.Free() > 0; i++ {
			if op.Read(1, uint64(i*8), 8, buf[i*4096:][:4096]); i%2 == 0 {
				op.Write(1, uint64(i*8), 8, buf[i*4096:][:4096], 0)
			}
			testutil.Value(q.Submit(&op))(t)
		}
		for q.Outstanding() > 0 {
			n := testutil.Value(q.Poll(done))(t)
			for i := range done[:n] {
				testutil.MustTrue(t, done[i].Status().OK(), "%v", done[i].Status())
			}
			if n == 0 {
				testutil.Must(t, q.Wait(time.Second))
			}
		}
	}
}

// TestFree: completions that Wait has reaped and Poll has not returned count as outstanding.
func TestFree(t *testing.T) {
	_, q := connectRDMA(t, newFakeRDMA(t), 4)
	var op Op
	for q.Free() > 0 {
		op.Flush(1)
		testutil.Value(q.Submit(&op))(t)
	}
	for len(q.done) == q.doneHead {
		testutil.Must(t, q.Wait(time.Second))
	}
	if _, err := q.Submit(&op); q.Free() != 0 || !errors.Is(err, ErrFull) {
		t.Errorf("%d free, submitting one: %v", q.Free(), err)
	}
	var done [4]Completion
	for q.Outstanding() > 0 {
		n := testutil.Value(q.Poll(done[:]))(t)
		testutil.True(t, q.Free() >= n, "%d free after %d completions", q.Free(), n)
	}
}

func TestRDMAViolations(t *testing.T) {
	type alter func(q *fakeRDMAQueue, cqe *nvme.CQE, wr *verbs.SendWR)
	answer := func(change alter) func(*fakeRDMAQueue, *nvme.SQE) {
		return func(q *fakeRDMAQueue, sqe *nvme.SQE) {
			cqe := q.cqe(sqe.CID(), 0, 0)
			wr := verbs.SendWR{Opcode: verbs.WRSend}
			change(q, &cqe, &wr)
			_ = q.sendResponse(cqe[:], wr)
		}
	}
	for _, tc := range []struct {
		name  string
		op    nvme.Opcode
		fault func(*fakeRDMAQueue, *nvme.SQE)
	}{
		{
			"unknown CID", nvme.NVMFlush,
			answer(func(_ *fakeRDMAQueue, c *nvme.CQE, _ *verbs.SendWR) { c[12] ^= 1 }),
		},
		{
			"invalidation not requested", nvme.NVMRead,
			answer(func(q *fakeRDMAQueue, _ *nvme.CQE, wr *verbs.SendWR) {
				wr.Opcode, wr.InvalidateRKey = verbs.WRSendWithInv, q.key
			}),
		},
		{"short response", nvme.NVMFlush, func(q *fakeRDMAQueue, sqe *nvme.SQE) {
			cqe := q.cqe(sqe.CID(), 0, 0)
			_ = q.sendResponse(cqe[:12], verbs.SendWR{Opcode: verbs.WRSend})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFakeRDMA(t, func(f *fakeRDMA) {
				f.override = func(q *fakeRDMAQueue, sqe *nvme.SQE) bool {
					if q.size != 16 || sqe.Opcode() != tc.op {
						return false
					}
					tc.fault(q, sqe)
					return true
				}
			})
			c, q := connectRDMA(t, f, 16)
			buf, err := c.Map(4096)
			testutil.Must(t, err)
			var op Op
			if op.Flush(1); tc.op == nvme.NVMRead {
				op.Read(1, 0, 8, buf)
			}
			testutil.Value(q.Submit(&op))(t)
			testutil.Until(t, "the queue ends", func() bool {
				_, err = q.Poll(nil)
				return err != nil
			})
			var v *Violation
			testutil.MustTrue(t, errors.As(err, &v), "got %v, want a violation", err)
		})
	}
}

// TestRDMAReceives: a small queue has so many receives that the kernel's target makes its send
// queue large enough for one command. All of them are used.
func TestRDMAReceives(t *testing.T) {
	f := newFakeRDMA(t)
	_, q := connectRDMA(t, f, 2)
	asked, _ := f.requests.Load(uint16(1))
	r := asked.(cmwire.Req)
	testutil.True(t, r.HSQSize == 1 && 4*r.HRQSize+1 >= 1+(256+5)/6, "queue sizes: %+v", r)
	for range 2 * r.HRQSize {
		testutil.Must(t, q.Read(testutil.Context(t), 1, 0, 1, make([]byte, 512)))
	}
}

func TestRDMARefused(t *testing.T) {
	f := newFakeRDMA(t, func(f *fakeRDMA) { f.reject = cmwire.InvalidHSQSize })
	tr := RDMA{Provider: f.fab.Provider("host"), Addr: f.addr}
	_, err := Connect(testutil.Context(t), tr, testOptions())
	var rej *RejectError
	testutil.MustTrue(t, errors.As(err, &rej) && rej.Status == cmwire.InvalidHSQSize &&
		errors.Is(err, ErrRefused), "got %v", err)
}

func TestRDMADisconnect(t *testing.T) {
	f := newFakeRDMA(t, func(f *fakeRDMA) {
		f.override = func(q *fakeRDMAQueue, sqe *nvme.SQE) bool {
			if sqe.Opcode() != nvme.NVMFlush || q.size == 33 {
				return false
			}
			_ = q.id.Disconnect()
			return true
		}
	})
	_, q := connectRDMA(t, f, 16)
	testutil.Is(t, q.Flush(testutil.Context(t), 1), ErrClosed, "")
}

// TestRDMALastResponse: a response that comes before the end of the connection completes its
// command, even if a poll notices the end and not the response, or both.
func TestRDMALastResponse(t *testing.T) {
	for _, end := range []string{"before a wait", "before a poll", "in a poll", "in a wait"} {
		t.Run(end, func(t *testing.T) {
			received, answer := make(chan struct{}), make(chan struct{})
			f := newFakeRDMA(t, func(f *fakeRDMA) {
				f.override = func(q *fakeRDMAQueue, sqe *nvme.SQE) bool {
					if sqe.Opcode() != nvme.NVMFlush || q.size == 33 {
						return false
					}
					close(received)
					<-answer
					testutil.Check(t, q.respond(sqe.CID(), 0, nvme.Success))
					_ = q.id.Disconnect()
					return true
				}
			})
			_, q := connectRDMA(t, f, 16)
			l := q.link.(*rdmaLink)
			var op Op
			op.Flush(1)
			testutil.Value(q.Submit(&op))(t)
			var done [1]Completion
			testutil.Value(q.Poll(done[:]))(t)
			testutil.Receive(t, "the command", received)
			disconnect := func() {
				close(answer)
				testutil.Until(t, "the end of the connection", l.disconnected.Load)
			}
			if strings.HasPrefix(end, "in") {
				cq := l.cq
				l.cq = &interruptedCQ{cq, sync.OnceFunc(disconnect)}
				defer func() { l.cq = cq }()
			} else {
				disconnect()
			}
			if strings.HasSuffix(end, "wait") {
				testutil.Must(t, q.Wait(time.Minute))
			}
			for n := 0; n == 0; {
				n = testutil.Value(q.Poll(done[:]))(t)
			}
			_, err := q.Poll(done[:])
			testutil.Is(t, err, ErrClosed, "after the last response")
		})
	}
}

// interruptedCQ calls after when a poll has found nothing.
type interruptedCQ struct {
	verbs.CQ
	after func()
}

func (c *interruptedCQ) Poll(wcs []verbs.WC) (int, error) {
	n, err := c.CQ.Poll(wcs)
	if n == 0 {
		c.after()
	}
	return n, err
}

func TestRDMAZeroAllocation(t *testing.T) {
	f := newFakeRDMA(t)
	c, q := connectRDMA(t, f, 16)
	buf := testutil.Value(c.Map(4096))(t)
	// Without posting, because the fake fabric allocates there.
	var op Op
	i := q.free[len(q.free)-1]
	l := q.link.(*rdmaLink)
	n := testutil.AllocsPerRun(200, func() {
		op.Write(1, 0, 8, buf, 0)
		testutil.Value(q.Submit(&op))(t)
		var cqe nvme.CQE
		cqe.Fill(0, uint16(q.submitted%16), q.slots[i].cid, 0)
		l.wrs, l.sges = l.wrs[:0], l.sges[:0]
		l.state[i].sent, l.state[i].answered, l.state[i].cqe = true, true, cqe
		testutil.Must(t, l.finish(q, int(i)))
		q.done = q.done[:0]
	})
	testutil.MustEqual(t, n, 0, "allocations per write")
}

// TestRDMALateSendCompletion: the completion of a SEND may follow later responses, and SQHD is in
// the order of the responses.
func TestRDMALateSendCompletion(t *testing.T) {
	f := newFakeRDMA(t)
	_, q := connectRDMA(t, f, 16)
	l := q.link.(*rdmaLink)
	head, before := uint16(q.consumed), len(q.done)
	var ids [2]int
	for i := range ids {
		var op Op
		op.Flush(1)
		op.Token = uint64(i)
		cid := testutil.Value(q.Submit(&op))(t)
		_, ids[i] = q.find(cid)
		(*nvme.CQE)(l.cqes[i*nvme.CQESize:]).Fill(0, head+uint16(i)+1, cid, nvme.Success)
	}
	for _, wc := range []verbs.WC{
		{WRID: rdmaRecvID, ByteLen: nvme.CQESize},
		{WRID: rdmaRecvID | 1, ByteLen: nvme.CQESize},
		{WRID: uint64(ids[1])},
		{WRID: uint64(ids[0])},
	} {
		testutil.Must(t, l.handle(q, &wc))
	}
	if done := q.done[before:]; len(done) != 2 || done[0].Token != 1 || done[1].Token != 0 {
		t.Errorf("completed %+v", done)
	}
}

// TestRDMAList: a list describes all data, in order, in blocks of equal size and a rest. Data that
// cannot be described is not submitted.
func TestRDMAList(t *testing.T) {
	f := newFakeRDMA(t)
	c, q := connectRDMA(t, f, 16)
	buf := testutil.Value(c.Map(1 << 20))(t)
	l := q.link.(*rdmaLink)
	for _, n := range []int{2, 3, 16} {
		i := int(q.free[len(q.free)-1])
		s := &q.slots[i]
		s.data, s.blocks, s.dir, s.raw = buf[:100<<10], n, toHost, false
		testutil.Must(t, l.describe(s, i, 4096))
		d := s.sqe.SGL1()
		testutil.True(t, d.Type() == nvme.SGLLastSegment && d.Subtype() == nvme.SGLSubtypeOffset &&
			d.Length() == uint32(16*n) && d.Address() == 0, "descriptor %x", d[:])
		at := mem.Addr(buf)
		for k := range n {
			b := (*nvme.SGLDescriptor)(l.bounce[i*l.step+16*k:])
			testutil.True(t, b.Type() == nvme.SGLKeyedDataBlock && b.Address() == at &&
				b.KeyedLength() >= uint32(100<<10/n), "block %d of %d: %x", k, n, b[:])
			at += uint64(b.KeyedLength())
		}
		testutil.Equal(t, at, mem.Addr(buf)+100<<10, "%d blocks end at", n)
	}
	for name, op := range map[string]Op{
		"bounced data":           {Data: make([]byte, 512), Blocks: 2},
		"more blocks than bytes": {Data: buf[:3], Blocks: 4},
		"more than fits":         {Data: buf[:1<<20], Blocks: 4096},
	} {
		op.SQE.SetOpcode(nvme.NVMRead)
		testutil.True(t, testutil.Err(q.Submit(&op)) != nil, "%s: accepted", name)
	}
}
