package target

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
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
