package target

import (
	"bytes"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// fused makes a half of a fused pair: FUSE is 1 or 2.
func fused(op nvme.Opcode, fuse uint8, slba uint64, data []byte) *fabrictest.Command {
	c := rw(op, 1, slba, max(1, uint32(len(data)/512)), data)
	c.SQE.SetFlags(psdtSGL<<6 | fuse)
	return c
}

// pairOf makes a fused Compare and Write.
func pairOf(slba uint64, old, data []byte) []*fabrictest.Command {
	return []*fabrictest.Command{
		fused(nvme.NVMCompare, 1, slba, old), fused(nvme.NVMWrite, 2, slba, data),
	}
}

func fill(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }

// TestFusedWaits: the first command waits for the second one, but not for ever; an Abort of either
// ends both, and so does the end of the queue.
func TestFusedWaits(t *testing.T) {
	r, h := joined(t, 2, 2, ramSubsystem(t, 1))
	q := h.io[0]
	zero, one := fill(0, 512), fill(1, 512)
	abort := func(c *fabrictest.Command) {
		t.Helper()
		a := command(nvme.AdminAbort, 0, nil)
		a.SQE.Abort().Set(1, c.SQE.CID())
		if r.ok(h.admin, a); a.CQE.DW0() != 0 || c.CQE.Status().Code() != nvme.AbortRequested {
			t.Errorf("Abort: %#x, %v", a.CQE.DW0(), c.CQE.Status())
		}
	}
	p := pairOf(0, zero, one)
	r.send(q, p[0])
	r.w.Advance(time.Duration(pairWait) - time.Second)
	testutil.MustTrue(t, !p[0].Done, "%v without the second", p[0].CQE.Status())
	r.ok(q, p[1])
	testutil.True(t, p[0].Done && p[0].CQE.Status().OK(), "the first: %v", p[0].CQE.Status())
	p = pairOf(0, one, zero)
	r.send(q, p[0])
	r.w.Advance(time.Duration(pairWait) + time.Second)
	testutil.Equal(t, p[0].CQE.Status().Code(), nvme.AbortedMissingFused, "after the wait")
	r.status(q, p[1], nvme.AbortedFailedFused)
	p = pairOf(0, one, zero)
	r.send(q, p[0])
	r.w.Settle()
	abort(p[0])
	r.status(q, p[1], nvme.AbortedFailedFused)
	testutil.True(t, bytes.Equal(r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))).Data, one),
		"a pair that failed has written")
	r.send(q, pairOf(0, one, zero)[0])
	r.w.Settle()
	q.HangUp() // with the first waiting
	r.until("the queue ends", func() bool { return q.Closed() })
}

// TestFusedFirstLate: a first command that another one than its second has followed fails when its
// data arrives, and does not wait.
func TestFusedFirstLate(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	q := r.connectHost(1).io[0]
	first := fused(nvme.NVMCompare, 1, 0, fill(0, 512))
	first.Late = true
	r.send(q, first)
	r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	q.Arrive(first)
	r.w.Settle()
	testutil.MustTrue(t, first.Done, "the first waits")
	r.allDone([]*fabrictest.Command{first}, nvme.AbortedMissingFused)
}

// TestFusedLock: while a pair is on its way, on any reactor, new writes to its blocks wait. Writes
// that the device already has come first. Everything else goes on.
func TestFusedLock(t *testing.T) {
	sub, dev := hangingSubsystem(t)
	sub.Namespaces[0].Timeout = 0
	r, h := joined(t, 3, 2, sub)
	a, b := h.io[0], h.io[1] // on different reactors
	zero, one, two := fill(0, 512), fill(1, 512), fill(2, 512)
	read := func() byte { return r.ok(b, rw(nvme.NVMRead, 1, 8, 1, make([]byte, 512))).Data[0] }
	r.ok(a, rw(nvme.NVMWrite, 1, 8, 1, zero))
	r.ok(b, rw(nvme.NVMWrite, 1, 8, 1, zero))

	dev.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite })
	early := r.send(b, rw(nvme.NVMWrite, 1, 8, 1, one))
	r.until("the device has a write", func() bool { return dev.Held() == 1 })
	p := pairOf(8, one, two)
	r.must(a.Send(p...))
	r.w.Settle()
	late := []*fabrictest.Command{ // each changes block 8
		rw(nvme.NVMWrite, 1, 8, 1, zero), rw(nvme.NVMWrite, 1, 1, 8, fill(0, 4096)),
		rw(nvme.NVMWriteZeroes, 1, 0, 64, nil), dsm(1, true, [2]uint64{100, 8}, [2]uint64{8, 1}),
		copyTo(7, nvme.CopyRanges, source{slba: 200, blocks: 2}),
	}
	for _, c := range late {
		r.send(b, c)
	}
	far := r.send(b, rw(nvme.NVMWrite, 1, 9, 1, one))
	r.until("another block is written", func() bool { return dev.Held() == 2 })
	for _, c := range append(late, p[0], p[1], early) {
		if c.Done {
			t.Fatalf("opcode %#x has overtaken", c.SQE.Opcode())
		}
	}
	testutil.True(t, read() == 0, "a read waits")
	dev.Release()
	for _, c := range append(late, early, p[0], p[1], far) {
		r.until("all complete", func() bool { return c.Done })
		if !c.CQE.Status().OK() {
			t.Errorf("opcode %#x: %v", c.SQE.Opcode(), c.CQE.Status())
		}
	}
	got := read()
	testutil.True(t, got == 0, "block 8 is %d: the last write is lost", got)
}

// TestFusedLockPending: a pair waits for writes that the device has. Writes that it does not have
// yet wait for the pair.
func TestFusedLockPending(t *testing.T) {
	r, h, dev := onFaulty(t, 1, 2)
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	dev.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite })
	first := r.send(h.io[0], rw(nvme.NVMWrite, 1, 0, 1, fill(1, 512)))
	r.w.Settle()
	dev.Full(true)
	last := r.send(h.io[0], rw(nvme.NVMWrite, 1, 0, 1, fill(3, 512)))
	pair := pairOf(0, fill(1, 512), fill(2, 512))
	for _, c := range pair {
		r.send(h.io[1], c)
	}
	r.w.Settle()
	dev.Full(false)
	r.w.Settle()
	if first.Done || last.Done || pair[0].Done {
		t.Errorf("done: %v, %v, %v", first.Done, last.Done, pair[0].Done)
	}
	dev.Release()
	r.until("all complete", func() bool { return last.Done && pair[1].Done })
	for i, c := range pair {
		testutil.Equal(t, c.CQE.Status(), nvme.Success, "command %d of the pair", i)
	}
}
