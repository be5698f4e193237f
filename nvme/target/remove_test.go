package target

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// remove calls fn, which removes something, and waits until nothing uses it any more.
func (r *harness) remove(fn func() (gone <-chan struct{}, err error)) {
	r.t.Helper()
	gone, err := fn()
	r.must(err)
	r.must(untilGone(r.w, gone))
}

func (r *harness) removeNamespace(nsid uint32) {
	r.t.Helper()
	r.remove(func() (<-chan struct{}, error) { return r.target.RemoveNamespace(testSub, nsid) })
}

func (r *harness) removeSubsystem() {
	r.t.Helper()
	r.remove(func() (<-chan struct{}, error) { return r.target.RemoveSubsystem(testSub, true) })
}

// untilGone runs the reactors until the channel is closed.
func untilGone(w *fabrictest.World, gone <-chan struct{}) error {
	go func() {
		<-gone
		w.Reactors[0].Wake()
	}()
	return w.Until(func() bool { return closed(gone) })
}

// stays checks that gone is still open after a moment.
func (r *harness) stays(gone <-chan struct{}) {
	r.t.Helper()
	r.w.Settle()
	select {
	case <-gone:
		r.t.Error("it is gone too early")
	case <-time.After(10 * time.Millisecond):
	}
}

// closed reports whether the channel is.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestRemoveNamespaceUnderIO: commands that the device has complete, later ones are refused, then
// the device may be closed (Q05, F-33).
func TestRemoveNamespaceUnderIO(t *testing.T) {
	r, h, dev := onFaulty(t, 2, 2)
	dev.Hold(nil)
	read := r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	many := r.send(h.io[1],
		dsm(1, true, [2]uint64{0, 1}, [2]uint64{1, 1}, [2]uint64{2, 1}, [2]uint64{3, 1},
			[2]uint64{4, 1},
			[2]uint64{5, 1}, [2]uint64{6, 1}, [2]uint64{7, 1}, [2]uint64{8, 1}, [2]uint64{9, 1}))
	r.until("the device has the IOs", func() bool { return dev.Held() == 1+compoundWidth })
	gone, err := r.target.RemoveNamespace(testSub, 1)
	r.must(err)
	r.status(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)), inactiveNamespace)
	testutil.MustTrue(t, !closed(gone) && !read.Done, "removed while the device has I/O")
	dev.Release()
	r.must(untilGone(r.w, gone))
	r.until("what the device did not have ends", func() bool { return many.Done })
	testutil.True(t, read.Done && read.CQE.Status().OK() && many.Done && many.CQE.Status().OK(),
		"read %v %v, deallocate %v %v", read.Done, read.CQE.Status(), many.Done, many.CQE.Status())
	// The same device and NSID again.
	r.must(r.target.AddNamespace(testSub, namespaces.Config{NSID: 1, Device: dev}))
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
}

// TestRemoveHungNamespace: a device that hangs delays only its own removal. The NSID is free at
// once, the counters that hosts see stay, and Close reports the namespace that it waited for.
func TestRemoveHungNamespace(t *testing.T) {
	sub, dev := faultySubsystem(t)
	next := ramDevice(t, 1<<20, 512)
	r, h := joined(t, 1, 1, sub)
	reads := func() uint64 {
		l, err := nvme.Parse[nvme.SMARTLog](r.ok(h.admin,
			logCommand(nvme.LogSMART, nvme.SMARTLogSize, 0)).Data)
		r.must(err)
		n, _ := l.HostReads.Uint64()
		return n
	}
	read := func() *fabrictest.Command { return rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)) }
	r.ok(h.io[0], read())
	dev.Hold(nil)
	r.send(h.io[0], read())
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	removed := r.target.find(testSub).Namespaces.Load().Get(1)
	gone, err := r.target.RemoveNamespace(testSub, 1)
	r.must(err)
	r.must(r.target.AddNamespace(testSub, namespaces.Config{NSID: 1, Device: next}))
	r.ok(h.io[0], read())
	r.ok(h.admin, logCommand(nvme.LogChangedNamespaces, 4096, 0))
	removed.Orphaned(func(func()) {}) // it is not ready
	r.w.Settle()
	testutil.True(t, r.ok(h.admin, logCommand(nvme.LogChangedNamespaces, 4, 0)).Data[0] == 0,
		"a change of the removed namespace is reported as one of its successor")
	if n := reads(); n != 2 || closed(gone) {
		t.Errorf("%d reads, gone %v", n, closed(gone))
	}
	r.target.common.CloseDeadline = time.Millisecond
	r.w.Settle()
	if err := r.target.Close(); !errors.Is(err, namespaces.ErrBusy) ||
		!strings.Contains(err.Error(), "namespace 1 of") {
		t.Errorf("%v", err)
	}
	dev.Release()
	r.must(untilGone(r.w, gone))
	r.target.common.CloseDeadline = closeDeadline
	r.during(r.target.Close)
	for _, ns := range r.target.slots {
		testutil.True(t, ns == nil, "a slot is not free")
	}
}

// TestRemoveWhileSwapping: a namespace that is removed is gone when its device is no longer being
// exchanged, and the new one does not notify it; commands that waited complete.
func TestRemoveWhileSwapping(t *testing.T) {
	for _, waits := range []bool{false, true} {
		next := &changing{Device: ramDevice(t, 1<<20, 512)}
		next.i = next.Device.Info()
		r, h := joined(t, 1, 1, ramSubsystem(t, 1))
		r.ok(h.io[0], readAt(0))
		x, _ := r.exchange(namespaces.Config{})
		var read *fabrictest.Command
		if waits {
			read = r.send(h.io[0], readAt(0))
		}
		gone, err := r.target.RemoveNamespace(testSub, 1)
		r.must(err)
		r.status(h.io[0], readAt(0), inactiveNamespace)
		r.stays(gone)
		r.must(x.end(next, nil))
		r.must(untilGone(r.w, gone))
		if waits && (!read.Done || !read.CQE.Status().OK()) {
			t.Error(read.Done, read.CQE.Status())
		}
		testutil.True(t, next.notify == nil, "the device notifies a namespace that was removed")
	}
}

// TestCloseWhileSwapping: the target closes when the exchange has ended.
func TestCloseWhileSwapping(t *testing.T) {
	dev := ramDevice(t, 1<<20, 512)
	r, h := joined(t, 1, 1, subsystemOf(testSub, dev))
	r.ok(h.io[0], readAt(0))
	x, _ := r.exchange(namespaces.Config{})
	r.send(h.io[0], readAt(0))
	r.target.common.CloseDeadline = time.Millisecond
	result := make(chan error, 1)
	go func() {
		result <- r.target.Close()
		r.w.Reactors[0].Wake()
	}()
	r.until("the target waits", func() bool { return len(result) > 0 })
	testutil.Is(t, <-result, namespaces.ErrBusy, "")
	r.target.common.CloseDeadline = closeDeadline
	r.must(x.end(dev, nil))
	r.until("the queues end", func() bool { return r.target.Sessions() == 0 })
}
