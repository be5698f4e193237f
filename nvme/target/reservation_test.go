package target

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// How many hosts with one NQN, and with NQNs that the configuration does not have, may be
// registered, and the status of others.
const (
	registrantsOfNQN     = 16
	registrantsOfUnknown = 128
	tooManyRegistrants   = nvme.InternalError | nvme.DNR
)

// memoryStore is a reservation.Store that outlives a target.
type memoryStore struct {
	mu            sync.Mutex
	kept          map[observe.Namespace]*reservation.State
	saves         int
	err           error
	failures      []bool        // of the next saves; true: it is kept all the same
	gate, entered chan struct{} // see hold
}

func (m *memoryStore) Load(nqn string, nsid uint32) *reservation.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept[observe.Namespace{SubNQN: nqn, NSID: nsid}]
}

func (m *memoryStore) Save(nqn string, nsid uint32, r *reservation.State) error {
	m.mu.Lock()
	gate := m.gate
	entered := m.entered
	m.mu.Unlock()
	if gate != nil {
		entered <- struct{}{}
		<-gate
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err, kept := m.err, m.err == nil
	if m.saves++; len(m.failures) > 0 {
		err, kept, m.failures = errors.New("a failure"), m.failures[0], m.failures[1:]
	}
	if m.kept == nil {
		m.kept = map[observe.Namespace]*reservation.State{}
	}
	switch {
	case !kept:
	case r == nil:
		delete(m.kept, observe.Namespace{SubNQN: nqn, NSID: nsid})
	default:
		m.kept[observe.Namespace{SubNQN: nqn, NSID: nsid}] = r
	}
	return err
}

// hold lets Save wait until release is called; entered says that it does.
func (m *memoryStore) hold() (entered <-chan struct{}, release func()) {
	e, gate := make(chan struct{}, 10), make(chan struct{})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err, m.gate, m.entered = nil, gate, e
	return e, func() { close(gate) }
}

// storeHarness is a harness with a store and RAM namespaces.
func storeHarness(t *testing.T, reactors, namespaces int, store *memoryStore) *harness {
	t.Helper()
	sub := ramSubsystem(t, namespaces)
	r := newHarness(t, reactors)
	r.target.shared.Reservations = store
	r.must(r.target.AddSubsystem(sub))
	return r
}

// resv makes a reservation command for namespace 1.
func resv(op nvme.Opcode, a nvme.ReservationAction, typ nvme.ReservationType, current, other uint64,
) *fabrictest.Command {
	var k nvme.ReservationKeys
	k.Set(current, other)
	c := command(op, 1, k[:])
	if op == nvme.IOReservationRelease {
		c.Data = c.Data[:nvme.ReservationReleaseSize]
	}
	c.SQE.Reservation().Set(a, false, typ, 0)
	return c
}

func register(key uint64) *fabrictest.Command {
	return resv(nvme.IOReservationRegister, nvme.ReservationRegister, 0, 0, key)
}

// registerPTPL registers and sets the PTPL state.
func registerPTPL(key uint64) *fabrictest.Command {
	c := register(key)
	c.SQE.Reservation().Set(nvme.ReservationRegister, false, 0, nvme.SetPTPL)
	return c
}

func acquire(key uint64, typ nvme.ReservationType) *fabrictest.Command {
	return resv(nvme.IOReservationAcquire, nvme.ReservationAcquire, typ, key, 0)
}

func preempt(a nvme.ReservationAction, key, other uint64, typ nvme.ReservationType,
) *fabrictest.Command {
	return resv(nvme.IOReservationAcquire, a, typ, key, other)
}

func release(key uint64, typ nvme.ReservationType) *fabrictest.Command {
	return resv(nvme.IOReservationRelease, nvme.ReservationRelease, typ, key, 0)
}

func hostID(i int) [16]byte { return [16]byte{0xAA, byte(i + 1)} }

// numbered is a host with an identifier of its own.
func (r *harness) numbered(i, nio int) *host {
	r.t.Helper()
	return r.connectHost(nio, func(a *connectArgs) {
		a.hostID, a.host = hostID(i), fmt.Sprintf("%s-%d", testHost, i)
	})
}

// untilChanged waits until the reservation of namespace 1 is as cond wants, and reactors know.
func (h *host) untilChanged(cond func(*nvme.ReservationStatus) bool) {
	h.r.t.Helper()
	h.r.until("the state changes", func() bool { s, _ := h.report(); return cond(s) })
	ns, err := h.r.target.namespace(testSub, 1)
	h.r.must(err)
	ns.Reservations.Detach(nil) // waits for the goroutine that makes the change
	h.r.w.Settle()
}

func isReserved(s *nvme.ReservationStatus) bool { return s.RTYPE != 0 }

func hasOneRegistrant(s *nvme.ReservationStatus) bool { return s.REGCTL == 1 }

// report reads the whole status of namespace 1.
func (h *host) report() (*nvme.ReservationStatus, []*nvme.RegisteredController) {
	h.r.t.Helper()
	size := nvme.ReservationStatusSize +
		(reservation.MaxRegistrants+1)*nvme.RegisteredControllerSize
	c := command(nvme.IOReservationReport, 1, make([]byte, size))
	c.SQE.Reservation().SetReport(size, true)
	h.r.ok(h.io[0], c)
	s, err := nvme.Parse[nvme.ReservationStatus](c.Data)
	h.r.must(err)
	var list []*nvme.RegisteredController
	for i := range int(s.REGCTL) {
		g, err := nvme.Parse[nvme.RegisteredController](
			c.Data[nvme.ReservationStatusSize+i*nvme.RegisteredControllerSize:])
		h.r.must(err)
		list = append(list, g)
	}
	return s, list
}

// notification reads log 80h once.
func (h *host) notification() *nvme.ReservationLog {
	h.r.t.Helper()
	l, err := nvme.Parse[nvme.ReservationLog](
		h.r.ok(h.admin, logCommand(nvme.LogReservation, nvme.ReservationLogSize, 0)).Data)
	h.r.must(err)
	return l
}

// TestManyRegistrants: 256 hosts may be registered, 16 of them with the same NQN, and a report has
// them all.
func TestManyRegistrants(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	host := func(nqn, i int) *host {
		return r.connectHost(1, func(a *connectArgs) {
			a.host = fmt.Sprintf("%s-%d", testHost, nqn)
			a.hostID, a.sqsize = [16]byte{byte(i), byte(i >> 8), 1}, 1
		})
	}
	for i := range reservation.MaxRegistrants/registrantsOfNQN + 1 {
		r.target.SetHostKnown(fmt.Sprintf("%s-%d", testHost, i), true)
	}
	for i := range reservation.MaxRegistrants {
		h := host(i/registrantsOfNQN, i)
		r.ok(h.io[0], register(uint64(i+1)))
		h.hangUp()
		if i == registrantsOfNQN {
			h = host(0, 1000)
			r.status(h.io[0], register(1), tooManyRegistrants)
			h.hangUp()
		}
	}
	h := host(1000, 1000)
	r.status(h.io[0], register(1), tooManyRegistrants)
	s, list := h.report()
	testutil.True(t, int(s.REGCTL) == reservation.MaxRegistrants &&
		list[255].HostID == [16]byte{255, 0, 1}, "%d registrants", s.REGCTL)
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
}

// TestUnknownRegistrants: where any host is allowed, NQNs that the configuration does not have fill
// half of the places, in shares of their networks, and hosts that it has register.
func TestUnknownRegistrants(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	host := func(nqn string, network int) *host {
		return r.connectHostInfo(1, from(network), func(a *connectArgs) {
			a.host, a.sqsize = nqn, 1
		})
	}
	made, networks := 0, 0
	for made < registrantsOfUnknown {
		h := host(fmt.Sprintf("%s-%d", testHost, made), networks)
		c := register(1)
		switch r.do(h.io[0], c); {
		case c.CQE.Status().OK():
			made++
		case c.CQE.Status()&^nvme.More == tooManyRegistrants && networks < 100:
			networks++
			testutil.True(t, networks != 1 || made == 85, "a network has %d", made)
		default:
			t.Fatalf("%d are registered: %v", made, c.CQE.Status())
		}
		h.hangUp()
	}
	testutil.True(t, networks >= 4, "%d networks have all places", networks+1)
	known := testHost + "-known"
	h := host(known, 0)
	r.status(h.io[0], register(1), tooManyRegistrants)
	want := "128 hosts that are not in the configuration are registered"
	testutil.True(t, strings.Contains(r.log.String(), want) && strings.Contains(r.log.String(),
		"host="+known), "the log has no %q:\n%s", want, r.log.String())
	r.target.SetHostKnown(known, true)
	r.ok(h.io[0], register(1))
}

// TestStoreFailsLate: a change that is stored although Save has failed does not come back with a
// restart, since its command has failed.
func TestStoreFailsLate(t *testing.T) {
	store := &memoryStore{}
	r := storeHarness(t, 1, 1, store)
	a := r.numbered(0, 1)
	r.ok(a.io[0], registerPTPL(1))
	r.ok(a.io[0], acquire(1, nvme.WriteExclusive))
	stored := func() nvme.ReservationType { return store.Load(testSub, 1).Type }
	store.failures = []bool{true}
	r.status(a.io[0], release(1, nvme.WriteExclusive), nvme.InternalError)
	testutil.True(t, stored() == nvme.WriteExclusive, "the reservation would end with a restart")
	store.failures = []bool{true, false}
	r.status(a.io[0], release(1, nvme.WriteExclusive), nvme.InternalError)
	r.ok(a.io[0], acquire(1, nvme.WriteExclusive))
	testutil.True(t, stored() == nvme.WriteExclusive,
		"the reservation would end with a restart, after another command")
}

// TestManyFences: commands that wait for a device which hangs hold no more memory than there are
// IOs and commands.
func TestManyFences(t *testing.T) {
	const writes, rounds = 20, 30
	sub, dev := hangingSubsystem(t)
	sub.Namespaces[0].Timeout = 0
	r := newHarness(t, 1, sub)
	a, b := r.numbered(0, 1), r.numbered(1, 1)
	r.ok(a.io[0], register(1))
	r.ok(b.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512))) // opens the channel
	dev.Hold(nil)
	for i := range writes {
		r.send(b.io[0], rw(nvme.NVMWrite, 1, uint64(i), 1, make([]byte, 512)))
	}
	r.w.Settle()
	ns, err := r.target.namespace(testSub, 1)
	r.must(err)
	ch := r.raw[0].channel(ns)
	var last *fabrictest.Command
	for range rounds {
		for range rounds {
			last = r.send(a.io[0], acquire(1, nvme.WriteExclusive))
			a.untilChanged(isReserved)
			r.ok(a.io[0], release(1, nvme.WriteExclusive))
		}
		r.w.Settle()
		has := ch.State().Busy
		testutil.MustTrue(t, has.Awaited == writes && has.Fences <= 4*rounds, "%+v", has)
		r.w.Advance(drainDeadline + time.Second)
		testutil.MustTrue(t, last.Done && !last.CQE.Status().OK(), "done %v, %v", last.Done,
			last.CQE.Status())
	}
	last = r.send(a.io[0], acquire(1, nvme.WriteExclusive))
	dev.Release()
	r.until("the device is back", func() bool { return last.Done })
	if st := last.CQE.Status(); !st.OK() || ch.State().Busy.Fences+ch.State().Busy.Awaited > 0 {
		t.Errorf("%v, %d fences, %d IOs", st, ch.State().Busy.Fences, ch.State().Busy.Awaited)
	}
}

// TestPersistAll: a controller has one command at a time that changes many namespaces.
func TestPersistAll(t *testing.T) {
	store := &memoryStore{}
	r := storeHarness(t, 1, 2, store)
	a := r.numbered(0, 1)
	persist := func(nsid uint32) *fabrictest.Command {
		c := setFeature(nvme.FeatureReservationPersist, 1)
		c.SQE.SetNSID(nsid)
		return c
	}
	_, free := store.hold()
	first, one := r.send(a.admin, persist(nvme.NSIDAll)), r.send(a.admin, persist(1))
	c := r.target.find(testSub).lookup(1)
	r.until("the first has begun", func() bool { return c.changing })
	r.status(a.admin, persist(nvme.NSIDAll), nvme.CommandInterrupted)
	free()
	r.until("the others complete", func() bool { return first.Done && one.Done })
	r.allDone([]*fabrictest.Command{first, one}, nvme.Success)
	r.ok(a.admin, persist(nvme.NSIDAll))
}

// TestReservationOfLostNamespace: a command that waits for commands of other hosts changes nothing
// once its host may no longer use the namespace.
func TestReservationOfLostNamespace(t *testing.T) {
	store := &memoryStore{}
	r := storeHarness(t, 1, 1, store)
	a, b := r.numbered(0, 1), r.numbered(1, 1)
	entered, free := store.hold()
	first := r.send(a.io[0], registerPTPL(1))
	testutil.Receive(t, "the store is asked", entered)
	late := r.send(b.io[0], register(2))
	r.w.Settle()
	cfg := namespaces.Config{NSID: 1, Hosts: []string{a.args.host}}
	r.during(func() error { return r.target.UpdateNamespace(testSub, cfg, nil) })
	free()
	r.until("the commands complete", func() bool { return first.Done && late.Done })
	testutil.Equal(t, late.CQE.Status()&^nvme.More, inactiveNamespace, "")
	s, _ := a.report()
	testutil.True(t, s.REGCTL == 1, "%d hosts are registered", s.REGCTL)
}

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
	testutil.Receive(t, "the store is asked", entered)
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
	testutil.Receive(t, "the store is asked", entered)
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
