package target

import (
	"errors"
	"strings"
	"testing"

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
