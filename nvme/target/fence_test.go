package target

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// TestStoreFails: a command that cannot be made durable fails and changes nothing; one that waits
// for the store completes when it is durable, in order, and lets reactors go on.
func TestStoreFails(t *testing.T) {
	store := &memoryStore{}
	r := storeHarness(t, 1, 1, store)
	a, b := r.numbered(0, 1), r.numbered(1, 1)
	r.ok(a.io[0], registerPTPL(1))
	store.mu.Lock()
	store.err = errors.New("the disk is full")
	store.mu.Unlock()
	r.status(a.io[0], acquire(1, nvme.ExclusiveAccess), nvme.InternalError)
	r.ok(b.io[0], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
	s, _ := b.report()
	testutil.True(t, s.RTYPE == 0 && s.PTPLS == 1, "%+v", s)
	testutil.True(t, strings.Contains(r.log.String(), "reservations cannot be stored"),
		"it is not logged")
	entered, free := store.hold()
	c := r.send(a.io[0], acquire(1, nvme.ExclusiveAccess))
	d := r.send(b.io[0], register(2))
	r.w.Settle()
	<-entered
	for range 100 {
		r.ok(b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))) // nobody is locked out yet
	}
	result := r.ok(a.admin, abortCommand(1, c.SQE.CID())).CQE.DW0()
	testutil.True(t, result == 1, "a change was aborted that may be made already")
	testutil.True(t, !c.Done && !d.Done, "a command has completed that is not durable")
	free()
	r.until("both complete", func() bool { return c.Done && d.Done })
	r.status(b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)), reservationConflict)
	// A store that hangs: the commands end. Commands that have not begun have no effect. A queue
	// with a waiting command ends.
	entered, free = store.hold()
	saves := store.saves
	c = r.send(a.io[0], release(1, nvme.ExclusiveAccess))
	r.w.Settle()
	<-entered
	d = r.send(b.io[0], resv(nvme.IOReservationRegister, nvme.ReservationUnregister, 0, 2, 0))
	r.w.Advance(drainDeadline)
	for _, c := range []*fabrictest.Command{c, d} {
		st := c.CQE.Status() &^ nvme.More
		testutil.True(t, c.Done && st == nvme.InternalError, "done %v, %v", c.Done, st)
	}
	r.send(b.io[0], register(2))
	b.hangUp()
	r.w.Settle()
	free()
	r.until("the first is made", func() bool {
		s, list := a.report()
		return s.RTYPE == 0 && len(list) == 2
	})
	testutil.True(t, store.saves == saves+1, "%d changes were stored", store.saves-saves)
}

// TestPreemptWaits: a preempt completes when the storage has no more writes of the preempted host.
// None of its writes reaches the storage afterwards: commands that wait for the device, for their
// data, or for the end of a pause are refused. Other hosts notice nothing.
func TestPreemptWaits(t *testing.T) {
	for _, action := range []nvme.ReservationAction{
		nvme.ReservationPreempt, nvme.ReservationPreemptAndAbort,
	} {
		sub, dev := faultySubsystem(t)
		if action == nvme.ReservationPreemptAndAbort {
			dev.HonorCancel()
		}
		r := newHarness(t, 2, sub)
		a, b := r.numbered(0, 2), r.numbered(1, 2)
		r.ok(a.io[0], register(1))
		r.ok(b.io[0], register(2))
		for _, q := range append(a.io, b.io...) {
			r.ok(q, rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
		}
		r.ok(b.io[0], acquire(2, nvme.WriteExclusive))
		dev.Hold(nil)
		var list []*fabrictest.Command
		for i, q := range b.io {
			list = append(list, r.send(q, rw(nvme.NVMWrite, 1, uint64(i), 1, make([]byte, 512))),
				r.send(q, rw(nvme.NVMRead, 1, uint64(i), 1, make([]byte, 512))),
				r.send(q, dsm(1, true, [2]uint64{8, 1}, [2]uint64{16, 1})))
		}
		r.w.Settle()
		dev.Full(true)
		waiting := r.send(b.io[0], rw(nvme.NVMWrite, 1, 5, 1, make([]byte, 512)))
		other := r.send(a.io[0], rw(nvme.NVMRead, 1, 6, 1, make([]byte, 512)))
		r.w.Step()
		c := r.send(a.io[1], preempt(action, 1, 2, nvme.WriteExclusive))
		r.until("what waits is refused", func() bool { return waiting.Done })
		testutil.Equal(t, waiting.CQE.Status()&^nvme.More, nvme.AbortedPreempt, "")
		dev.Full(false)
		r.w.Step()
		if action == nvme.ReservationPreempt {
			testutil.True(t, !c.Done, "the preempt has completed while the storage has writes")
			dev.Release()
		}
		r.until("the preempt completes", func() bool { return c.Done })
		testutil.Equal(t, c.CQE.Status(), nvme.Success, "preempt")
		for _, c := range list {
			read := c.SQE.Opcode() == nvme.NVMRead
			if !c.Done && (action == nvme.ReservationPreemptAndAbort || !read) {
				t.Errorf("opcode %#x is not done when the preempt is", c.SQE.Opcode())
			}
			st := c.CQE.Status() &^ nvme.More
			if action == nvme.ReservationPreemptAndAbort && st != nvme.AbortedPreempt {
				t.Errorf("opcode %#x: %v", c.SQE.Opcode(), st)
			}
		}
		dev.Release()
		r.until("the other host's read", func() bool { return other.Done })
		testutil.Equal(t, other.CQE.Status(), nvme.Success, "another host")
		r.status(b.io[1], rw(nvme.NVMWrite, 1, 5, 1, make([]byte, 512)), reservationConflict)
		r.ok(b.io[1], rw(nvme.NVMRead, 1, 5, 1, make([]byte, 512)))
	}
}

// TestPreemptWhilePaused: commands that wait for a pause to end are refused at once.
func TestPreemptWhilePaused(t *testing.T) {
	r := newHarness(t, 2, ramSubsystem(t, 1))
	a, b := r.numbered(0, 1), r.numbered(1, 2)
	r.ok(a.io[0], register(1))
	r.ok(b.io[0], register(2))
	r.ok(b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.during(func() error { return r.target.PauseNamespace(testSub, 1) })
	w := r.send(b.io[0], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
	w2 := r.send(b.io[1], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
	r.w.Settle()
	testutil.MustTrue(t, !w.Done, "the namespace is not paused")
	r.ok(a.io[0], acquire(1, nvme.WriteExclusive))
	r.until("both are refused", func() bool { return w.Done && w2.Done })
	for _, c := range []*fabrictest.Command{w, w2} {
		testutil.Equal(t, c.CQE.Status()&^nvme.More, nvme.AbortedPreempt, "")
	}
	r.during(func() error { return r.target.ResumeNamespace(testSub, 1) })
	r.ok(a.io[0], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
}

// TestPreemptWithOrphans: a device that hangs may still carry out its writes. So a preempt does not
// succeed before the device is back, and fails in time.
func TestPreemptWithOrphans(t *testing.T) {
	sub, dev := hangingSubsystem(t)
	r := newHarness(t, 1, sub)
	a, b := r.numbered(0, 1), r.numbered(1, 1)
	r.ok(a.io[0], register(1))
	r.ok(b.io[0], register(2))
	r.ok(b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))) // opens the channel
	dev.Hold(nil)
	w := r.send(b.io[0], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
	r.w.Advance(time.Minute)
	testutil.MustEqual(t, w.CQE.Status()&^nvme.More, notReady, "")
	// Without a reservation a preempt takes no access away.
	r.ok(a.io[0], preempt(nvme.ReservationPreempt, 1, 2, 1))
	c := r.send(a.io[0], acquire(1, nvme.WriteExclusive))
	r.w.Settle()
	a.untilChanged(isReserved)
	testutil.True(t, !c.Done, "acquired while the device may still write")
	r.w.Advance(drainDeadline)
	st := c.CQE.Status() &^ nvme.More
	testutil.True(t, c.Done && st == nvme.InternalError, "done %v, %v", c.Done, st)
	// The reservation is held now, and the device may still write: to say it again changes nothing.
	for _, again := range []*fabrictest.Command{
		acquire(1, nvme.WriteExclusive),
		preempt(nvme.ReservationPreempt, 1, 2, nvme.WriteExclusive),
	} {
		r.send(a.io[0], again)
		r.ok(a.io[0], register(1)) // after it
		r.w.Settle()
		testutil.True(t, !again.Done, "done with %v while the device may still write",
			again.CQE.Status())
		r.w.Advance(drainDeadline)
		if st := again.CQE.Status() &^ nvme.More; !again.Done || st != nvme.InternalError {
			t.Errorf("again: done %v, %v", again.Done, st)
		}
	}
	r.ok(a.io[0], release(1, nvme.WriteExclusive))
	c = r.send(a.io[0], acquire(1, nvme.WriteExclusive))
	a.untilChanged(isReserved)
	dev.Release()
	r.until("the device is back", func() bool { return c.Done })
	testutil.Equal(t, c.CQE.Status(), nvme.Success, "")
}

// TestReservationsOutlive: reservations survive a temporary absence of the namespace, disconnected
// hosts, hosts that are no longer allowed, and new storage. They end with the namespace.
// Reservations that do not persist also end with the target.
func TestReservationsOutlive(t *testing.T) {
	nc := namespaces.Config{NSID: 1, Device: ramDevice(t, 1<<20, 512)}
	another := ramSubsystem(t, 1)
	store := &memoryStore{}
	r := storeHarness(t, 2, 1, store)
	a, b := r.numbered(0, 1), r.numbered(1, 1)
	r.ok(a.io[0], registerPTPL(1))
	r.ok(a.io[0], acquire(1, nvme.WriteExclusive))
	locked := func(q *fabrictest.Queue) {
		t.Helper()
		r.status(q, rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)), reservationConflict)
	}
	locked(b.io[0])
	a.hangUp()
	r.w.Settle()
	locked(b.io[0])
	r.during(func() error {
		return r.target.UpdateNamespace(testSub, nc, func(backend.Device) (backend.Device, error) {
			return nc.Device, nil
		})
	})
	locked(b.io[0])
	remove := func() {
		gone, err := r.target.RemoveNamespace(testSub, 1)
		r.must(err)
		r.during(func() error { <-gone; return nil })
	}
	remove()
	r.must(r.target.AddNamespace(testSub, nc))
	locked(b.io[0])
	again := New(Options{Reservations: store})
	r.must(again.AddSubsystem(another))
	ns, err := again.namespace(testSub, 1)
	r.must(err)
	now := ns.Reservations.State()
	testutil.True(t, now.Type == nvme.WriteExclusive && now.PTPL, "after a restart: %+v", now)
	r.must(again.Close())
	remove()
	r.during(func() error { r.target.ForgetNamespace(testSub, 1); return nil })
	testutil.True(t, strings.Contains(r.log.String(), "a reservation has ended with its namespace"),
		"its end is not logged")
	r.must(r.target.AddNamespace(testSub, nc))
	r.ok(b.io[0], rw(nvme.NVMWrite, 1, 0, 1, make([]byte, 512)))
	testutil.True(t, len(store.kept) == 0, "still stored: %+v", store.kept)
}
