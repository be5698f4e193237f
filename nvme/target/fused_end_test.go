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

// TestFusedNamespaceGoes: a pair that waits for its lock ends when its namespace is removed, and
// goes on when the device of the namespace is exchanged.
func TestFusedNamespaceGoes(t *testing.T) {
	sub, dev := hangingSubsystem(t)
	sub.Namespaces[0].Timeout = 0
	r, h := joined(t, 3, 2, sub)
	zero, one := fill(0, 512), fill(1, 512)
	begin := func(old, data []byte) (early *fabrictest.Command, p []*fabrictest.Command) {
		dev.Hold(func(io *backend.IO) bool { return io.Op == backend.OpWrite })
		early = r.send(h.io[1], rw(nvme.NVMWrite, 1, 8, 1, old))
		r.until("the device has a write", func() bool { return dev.Held() == 1 })
		p = pairOf(8, old, data)
		r.must(h.io[0].Send(p...))
		r.w.Settle()
		return early, p
	}
	for _, q := range h.io { // opens the channels
		r.ok(q, rw(nvme.NVMWrite, 1, 8, 1, zero))
	}
	_, p := begin(zero, one)
	x := r.startExchange(sub.Namespaces[0])
	dev.Release()
	r.until("the device has nothing", func() bool { return len(x.old) > 0 })
	r.must(x.end(<-x.old, nil))
	r.until("the pair completes", func() bool { return p[1].Done })
	if a, b := p[0].CQE.Status(), p[1].CQE.Status(); !a.OK() || !b.OK() {
		t.Errorf("with an exchange of the device: %v, %v", a, b)
	}
	early, p := begin(one, zero)
	_, err := r.target.RemoveNamespace(testSub, 1)
	r.must(err)
	dev.Release()
	for _, c := range append(p, early) {
		r.until("all complete", func() bool { return c.Done })
	}
	testutil.Equal(t, early.CQE.Status(), nvme.Success, "a write before the removal")
}

// TestFusedAborted: an Abort of either command, and the end of the queue, end a pair that waits for
// its lock, and the next one goes on.
func TestFusedAborted(t *testing.T) {
	sub, dev := hangingSubsystem(t)
	sub.Namespaces[0].Timeout = 0
	r, h := joined(t, 3, 3, sub)
	zero, one := fill(0, 512), fill(1, 512)
	for half := range 3 {
		r.ok(h.io[0], rw(nvme.NVMWrite, 1, 8, 1, zero))
		dev.Hold(nil)
		early := r.send(h.io[1], rw(nvme.NVMWrite, 1, 8, 1, zero))
		r.until("the device has a write", func() bool { return dev.Held() == 1 })
		p, next := pairOf(8, zero, one), pairOf(8, zero, one)
		r.must(h.io[2].Send(p...))
		r.w.Settle()
		r.must(h.io[0].Send(next...))
		r.w.Settle()
		if half < 2 {
			r.ok(h.admin, abortCommand(3, p[half].SQE.CID()))
			for i, c := range p {
				if st := c.CQE.Status().Code(); !c.Done || st != nvme.AbortRequested {
					t.Errorf("abort of %d: command %d: %v", half, i, st)
				}
			}
		} else {
			h.io[2].HangUp()
			r.until("the queue ends", func() bool { return h.io[2].Closed() })
		}
		dev.Release()
		for _, c := range append(next, early) {
			r.until("the rest completes", func() bool { return c.Done })
			testutil.True(t, c.CQE.Status().OK(), "%v", c.CQE.Status())
		}
	}
}

// TestFusedHangs: a pair that the device does not answer times out, with both commands, and does
// not write later.
func TestFusedHangs(t *testing.T) {
	sub, dev := hangingSubsystem(t)
	r := newHarness(t, 2, sub)
	q := r.connectHost(1).io[0]
	zero, one := fill(0, 512), fill(1, 512)
	r.ok(q, rw(nvme.NVMWrite, 1, 8, 1, zero))
	dev.Hold(nil)
	free := r.w.Reactors[1].Memory().Available()
	p := pairOf(8, zero, one)
	r.must(q.Send(p...))
	r.until("the device reads", func() bool { return dev.Held() == 1 })
	r.w.Advance(4 * time.Second)
	for i, c := range p {
		st := c.CQE.Status().Code()
		testutil.True(t, c.Done && st == notReady, "command %d: done %v, %v", i, c.Done, st)
	}
	dev.Release()
	r.w.Settle()
	n := r.w.Reactors[1].Memory().Available()
	testutil.True(t, n == free, "%d bytes have not come back", free-n)
	testutil.True(t, bytes.Equal(r.ok(q, rw(nvme.NVMRead, 1, 8, 1, make([]byte, 512))).Data, zero),
		"it has written after all")
	p = pairOf(8, zero, one)
	r.must(q.Send(p...))
	r.until("the next pair completes", func() bool { return p[1].Done })
	testutil.True(t, p[1].CQE.Status().OK(), "%v", p[1].CQE.Status())
}
