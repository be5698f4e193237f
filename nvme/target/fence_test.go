package target

import (
	"cmp"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
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

// TestReservationsElsewhere: while another target may change the reservations, commands get an ANA
// status. When they come back, the access is that of their new state, and all of them are stored.
func TestReservationsElsewhere(t *testing.T) {
	store := &memoryStore{}
	r := storeHarness(t, 2, 1, store)
	a, b := r.numbered(0, 1), r.numbered(1, 1)
	r.ok(a.io[0], register(1))
	testutil.Equal(t, store.saves, 0, "volatile reservations were stored")
	ours := r.target.Reservations(testSub, 1)
	ours.Move(reservation.Elsewhere)
	r.status(b.io[0], register(2), nvme.ANAInaccessible)
	report := command(nvme.IOReservationReport, 1, make([]byte, 4096))
	report.SQE.Reservation().SetReport(4096, true)
	r.status(a.io[0], report, nvme.ANAInaccessible)
	next := *ours.State()
	next.Type, next.Holder = nvme.ExclusiveAccess, next.Registrants[0].Host
	r.during(func() error { ours.Restore(&next); return nil })
	ours.Move(reservation.Shared)
	r.status(b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)), reservationConflict)
	r.ok(a.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	s, _ := a.report()
	testutil.Equal(t, s.RTYPE, nvme.ExclusiveAccess, "the type")
	r.ok(a.io[0], release(1, nvme.ExclusiveAccess))
	testutil.Equal(t, store.saves, 1, "states that were stored")
	store.failures = []bool{false, false} // before the command is sent
	r.status(a.io[0], acquire(1, nvme.ExclusiveAccess), nvme.InternalError)
	s, _ = a.report()
	testutil.Equal(t, s.RTYPE, 0, "the type after a failure")
	ours.Move(reservation.Here)
	r.ok(a.io[0], acquire(1, nvme.ExclusiveAccess))
}

// preemption is how one host preempts another one.
type preemption struct {
	name   string
	abort  bool
	shared bool // there is no reservation, so the other host keeps its access
}

var preemptions = []preemption{
	{"preempt", false, false}, {"abort", true, false}, {"abort without a reservation", true, true},
}

// hosts connects the host that preempts and the other one, which holds the namespace unless it is
// shared.
func (p *preemption) hosts(r *harness) (a, b *host) {
	a, b = r.numbered(0, 1), r.numbered(1, 1)
	r.ok(a.io[0], register(1))
	r.ok(b.io[0], register(2))
	if !p.shared {
		r.ok(b.io[0], acquire(2, nvme.WriteExclusive))
	}
	return a, b
}

// start sends the command that preempts, and waits until reactors know.
func (p *preemption) start(r *harness, a *host) *fabrictest.Command {
	action := nvme.ReservationPreempt
	if p.abort {
		action = nvme.ReservationPreemptAndAbort
	}
	c := r.send(a.io[0], preempt(action, 1, 2, nvme.WriteExclusive))
	a.untilChanged(hasOneRegistrant)
	return c
}

func opIs(op backend.Op) func(*backend.IO) bool {
	return func(io *backend.IO) bool { return io.Op == op }
}

// blocks reads n blocks of namespace 1, also if there is a limit.
func (r *harness) blocks(q *fabrictest.Queue, slba uint64, n uint32) []byte {
	r.t.Helper()
	c := r.send(q, rw(nvme.NVMRead, 1, slba, n, make([]byte, n*512)))
	r.w.Advance(10 * time.Second)
	r.allDone([]*fabrictest.Command{c}, nvme.Success)
	return c.Data
}

// TestPreemptPiece: a command that takes several IOs is preempted while the next one waits at a
// limit: it ends, and the limit has nothing of it.
func TestPreemptPiece(t *testing.T) {
	for _, p := range preemptions {
		for _, kind := range turnsKinds {
			if kind.name == "compare" || kind.name == "verify" && !p.abort {
				continue // it does not wait in between, or still may read
			}
			t.Run(p.name+" during "+kind.name, func(t *testing.T) {
				sub := turnsSubsystem(t, func(dev backend.Device) backend.Device { return dev })
				sub.Namespaces[0].Limits = qos.Limits{IOPS: 1}
				r := newHarness(t, 2, sub)
				a, b := p.hosts(r)
				r.blocks(b.io[0], 0, 1) // opens the channel
				c := r.send(b.io[0], kind.make(1))
				r.w.Advance(time.Second)
				var w *qos.Waiter
				for f := range r.raw[1].shares.Flows.All() {
					w = cmp.Or(w, f.Limits.First())
				}
				testutil.MustTrue(t, w != nil && w.Owner.(*cmd).compound != nil,
					"it does not wait at the limit")
				done := p.start(r, a)
				r.w.Advance(time.Second)
				r.allDone([]*fabrictest.Command{done}, nvme.Success)
				r.allDone([]*fabrictest.Command{c}, nvme.AbortedPreempt)
				testutil.True(t, !w.Listed(), "it waits at the limit still")
			})
		}
	}
}

// TestFenceOfReadmitted: a preempt waits for the IOs of a host that it excludes, also if that host
// has access again before its commands are visited.
func TestFenceOfReadmitted(t *testing.T) {
	for _, begun := range []bool{false, true} {
		p := newBarrierTest(t)
		p.ok(p.b.io[0], acquire(2, nvme.WriteExclusiveRegistrantsOnly))
		p.hold(write(8, 'b'))
		h := p.raw[1]
		step, release := holdWalks(h) // as if there were other walks before
		c := p.send(p.a.io[0],
			preempt(nvme.ReservationPreempt, 1, 2, nvme.WriteExclusiveRegistrantsOnly))
		p.a.untilChanged(hasOneRegistrant)
		if begun {
			step()
		}
		d := p.send(p.b.io[0], register(2))
		p.a.untilChanged(func(s *nvme.ReservationStatus) bool { return s.REGCTL == 2 })
		release()
		p.w.Settle()
		testutil.True(t, !c.Done, "round begun %v: the preempt completes before the write", begun)
		p.dev.Release()
		p.allDone(append(p.all, c, d), nvme.Success)
		p.nothingLeft()
	}
}
