package target

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/authn"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// Options configure a Target.
type Options struct {
	// Log is for operators; nil is slog.Default. Nothing is logged per I/O.
	Log *slog.Logger
	// Firmware is the version text of Identify Controller (FR, 8 characters) and of log 03h.
	Firmware string
	// Generation is the first generation of the discovery log; 0 is 1. A target that continues
	// where another has ended starts above the last one, so that hosts notice the changes.
	Generation uint64
	// Protection keeps which namespaces hosts have write protected; nil: they cannot.
	Protection controllers.ProtectionStore
	// Reservations keeps reservations through a restart; nil: none persist.
	Reservations reservation.Store
	// Uncorrectable keeps through a restart which blocks hosts have marked uncorrectable; nil: they
	// cannot.
	Uncorrectable marks.Store
}

// Target is everything that hosts can reach: subsystems, ports and the discovery service. Its
// methods may be called by any goroutine that is not a reactor. Methods that remove storage return
// when hosts can no longer reach it. They return a channel that is closed when no reactor and no
// device uses the storage any more.
type Target struct {
	log *slog.Logger // no peer causes its lines at will
	// table maps NQNs to subsystems; readers take no lock.
	table     atomic.Pointer[map[string]*subsystem]
	discovery *subsystem
	shared    controllers.Target
	closed    atomic.Bool
	final     association.Final
	observation
	// lastSession is the ID of the newest session.
	lastSession atomic.Uint64

	mu    sync.Mutex        // guards the fields below and writes to table
	ports controllers.Ports // State needs no mu
	// discoveryConfig is that of the next generation of the discovery log.
	discoveryConfig subsystems.Discovery
	remotes         []discovery.Remote // of other gateways
	isGateway       bool               // SetGateways was called
	handlers        []*Handler
	slots           []*namespaces.Namespace // by Namespace.Slot; nil: free
	retiring        sync.WaitGroup
	keysChanged     bool              // a host has got or lost its key since EnforceKeys
	common          namespaces.Common // tests shorten its deadlines
}

// observation is the state for the observation of commands.
type observation struct {
	dumps     observe.Dumps
	latencies observe.Reader
	slowIO    atomic.Int64 // nanoseconds, see SetSlowIO
}

// New makes a Target without subsystems and ports; the discovery subsystem always exists.
func New(o Options) *Target {
	t := &Target{
		log:         cmp.Or(o.Log, slog.Default()),
		observation: observation{latencies: make(observe.Reader, 1)},
	}
	t.common = namespaces.Common{
		Log: t.log, Started: time.Now(), CloseDeadline: closeDeadline, DrainDeadline: drainDeadline,
	}
	service := subsystems.Config{NQN: nvme.DiscoveryNQN, AllowAnyHost: true}
	service.SetDefaults()
	service.MaxTransfer = discoveryTransfer
	t.discovery = newSubsystem(t, service)
	t.table.Store(&map[string]*subsystem{})
	t.shared = controllers.Target{
		Firmware: o.Firmware, Started: t.common.Started, Auth: authn.NewHosts(),
		Hosts: subsystems.NewHosts(), HostLog: ratelog.New(t.log), StrangerLog: ratelog.New(t.log),
		Workers:      turns.Pool{Prompt: true},
		Reservations: o.Reservations, Protection: o.Protection, Uncorrectable: o.Uncorrectable,
		QuiesceTime: uint16(quiesceTime),
		Commands:    effectsOf,
	}
	t.shared.Init()
	t.newDiscoveryTable(max(o.Generation, 1))
	return t
}

// Changing begins a change of subsystems or hosts, see association.Final. Any goroutine may call
// it.
func (t *Target) Changing() (done func()) { return t.final.Changing() }

// find returns the subsystem with exactly this NQN, or nil.
func (t *Target) find(nqn string) *subsystem {
	if nqn == nvme.DiscoveryNQN || nqn == t.shared.Discovery.Load().NQN {
		return t.discovery
	}
	return (*t.table.Load())[nqn]
}

// hasController reports whether a subsystem has a controller with this identifier of this host,
// which has the address of remote.
func (t *Target) hasController(cntlid uint16, hostNQN string, remote netip.AddrPort) bool {
	for _, s := range *t.table.Load() {
		c := s.lookup(cntlid)
		if c != nil && c.HostNQN == hostNQN && c.Info.Remote.Addr() == remote.Addr() {
			return true
		}
	}
	return false
}

// setTable replaces the table with a changed copy. The caller holds t.mu.
func (t *Target) setTable(change func(map[string]*subsystem)) {
	m := maps.Clone(*t.table.Load())
	change(m)
	t.table.Store(&m)
}

// AddSubsystem makes a subsystem and its namespaces reachable. The devices must be open and stay so
// until they are gone after RemoveSubsystem or RemoveNamespace, or Close has returned nil.
func (t *Target) AddSubsystem(cfg subsystems.Config) error {
	cfg.SetDefaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed.Load() {
		return errClosed
	}
	if t.find(cfg.NQN) != nil {
		return fmt.Errorf("subsystem %q exists already", cfg.NQN)
	}
	s := newSubsystem(t, cfg)
	var list []*namespaces.Namespace
	for _, nc := range cfg.Namespaces {
		ns, err := s.newNamespace(nc)
		if err == nil {
			list = append(list, ns)
			if slices.ContainsFunc(list[:len(list)-1],
				func(o *namespaces.Namespace) bool { return o.ID.NSID == ns.ID.NSID }) {
				err = fmt.Errorf("subsystem %q: namespace %d is given twice", cfg.NQN, nc.NSID)
			}
		}
		if err != nil {
			for _, ns := range list {
				ns.StopNotify()
			}
			t.freeSlots(list)
			return err
		}
	}
	t.final.SetGone(cfg.NQN, false)
	s.Namespaces.Store(list)
	t.setTable(func(m map[string]*subsystem) { m[s.NQN] = s })
	t.discoveryChanged()
	return nil
}

// AddNamespace adds a namespace to a subsystem and notifies connected hosts.
func (t *Target) AddNamespace(nqn string, cfg namespaces.Config) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := (*t.table.Load())[nqn]
	if s == nil || t.closed.Load() {
		return fmt.Errorf("subsystem %q does not exist", nqn)
	}
	old := s.Namespaces.Load()
	if old.Get(cfg.NSID) != nil {
		return fmt.Errorf("subsystem %q: namespace %d exists already", nqn, cfg.NSID)
	}
	ns, err := s.newNamespace(cfg)
	if err != nil {
		return err
	}
	s.Namespaces.Store(append(slices.Clone(old.List), ns))
	s.Tell(ns, namespaces.Changed, ns.Attributes().Visible)
	return nil
}

// takeSlot and freeSlots manage the dense indices of the channels of each reactor. The caller holds
// t.mu.
func (t *Target) takeSlot(ns *namespaces.Namespace) int {
	i := slices.Index(t.slots, nil)
	if i < 0 {
		i = len(t.slots)
		t.slots = append(t.slots, nil)
	}
	t.slots[i] = ns
	return i
}

func (t *Target) freeSlots(list []*namespaces.Namespace) {
	for _, ns := range list {
		ns.Reservations.Detach(storage{ns})
		t.slots[ns.Slot] = nil
	}
}

// AddPort makes a listener part of the discovery log.
func (t *Target) AddPort(p discovery.Port) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ports.Add(p); err != nil {
		return err
	}
	t.discoveryChanged()
	return nil
}

// RemovePort takes a listener out of the discovery log and disconnects everything that came through
// it. Until the identifier is added again, connections with it are refused, also connections that
// the listener accepted before. The caller has closed the listener. RemovePort does not wait for
// the connections to end.
func (t *Target) RemovePort(id uint16) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ports.Remove(id); err != nil { // a session either sees it or is in the list
		return err
	}
	t.discoveryChanged()
	for _, h := range t.handlers {
		h.post(func() {
			h.disconnect(errPortRemoved, func(s *session) bool { return s.info.PortID == id })
		})
	}
	return nil
}

// PortSessions is the number of queues that came through a port and have not ended.
func (t *Target) PortSessions(id uint16) int { return int(t.ports.State(id).Sessions.Load()) }

// Controllers lists the existing controllers, discovery controllers included, in the order of
// subsystem and CNTLID. Controllers of hosts that have yet to authenticate are left out.
func (t *Target) Controllers() []observed.Host {
	var list []observed.Host
	for _, s := range append(slices.Collect(maps.Values(*t.table.Load())), t.discovery) {
		s.each(func(c *controller) {
			if c.Proof.Proven.Load() {
				list = append(list, c.describe())
			}
		})
	}
	slices.SortFunc(list, func(a, b observed.Host) int {
		return cmp.Or(cmp.Compare(a.Subsystem, b.Subsystem), cmp.Compare(a.CNTLID, b.CNTLID))
	})
	return list
}

// Stats lists the namespaces, in the order of subsystem and NSID. It does not block: CheckHealth,
// and requests of hosts, refresh the state of drives and the space.
func (t *Target) Stats() []observed.Namespace { return controllers.Stats(t.subsystems()) }

// Limits lists the limits that there are, in the order of host, subsystem and NSID.
func (t *Target) Limits() []qos.Info {
	return controllers.Limits(t.shared.Hosts.Limiters(), t.subsystems())
}

// CheckHealth is controllers.CheckHealth. One goroutine calls it, periodically.
func (t *Target) CheckHealth() { controllers.CheckHealth(t.subsystems(), t.log) }

// subsystems lists the subsystems that hosts can reach, in no order.
func (t *Target) subsystems() (list []*controllers.Subsystem) {
	for _, s := range *t.table.Load() {
		list = append(list, &s.Subsystem)
	}
	return list
}

// Sessions is the number of queues that transports have opened and that have not ended.
func (t *Target) Sessions() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, h := range t.handlers {
		n += int(h.sessionCount.Load())
	}
	return n
}
