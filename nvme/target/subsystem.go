package target

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// SubsystemConfig describes an NVM subsystem.
type SubsystemConfig struct {
	// NQN names the subsystem; required. A name that does not begin as an NQN is warned of.
	NQN string
	// Serial (at most 20 ASCII characters; derived from the NQN if empty) and Model (at most 40;
	// "nvmf-target" if empty) are shown by Identify Controller.
	Serial, Model string
	// AllowAnyHost admits every host. Otherwise only hosts with an NQN in Hosts are admitted,
	// compared byte by byte. Neither is authentication.
	AllowAnyHost bool
	Hosts        []string
	// Security is the security required of admitted hosts.
	Security Security
	// Listeners are the listeners of the subsystem for hosts, as in Port.Listener. Empty: all.
	Listeners []string
	// RefuseDuplicateHosts refuses a host that is connected with another Host Identifier already.
	// It is logged in any case.
	RefuseDuplicateHosts bool
	// CNTLIDMin and CNTLIDMax bound the controller identifiers, 1 to FFEFh if zero. Targets that
	// share a subsystem NQN need disjoint ranges.
	CNTLIDMin, CNTLIDMax uint16
	// MaxIOQueues is the number of I/O queues a controller may have, 128 if zero; MaxQueueSize the
	// entries of a queue, 32 to 65536, 128 if zero.
	MaxIOQueues, MaxQueueSize int
	// MaxTransfer is the largest amount of data of a command in bytes, a power of two from 64 KiB
	// to 4 MiB; 1 MiB if zero. The data memory of a reactor must hold several.
	MaxTransfer int
	// Limits are the limits of all hosts together.
	Limits     qos.Limits
	Namespaces []namespaces.Config
}

// The bounds of SubsystemConfig, which the configuration's parser uses as well.
const (
	SerialSize  = 20 // Base section 5.1.13.2.1
	ModelSize   = 40 // as above
	MinCNTLID   = 1
	MaxIOQueues = 1024
	// MinQueueSize is the least size of a queue. Discovery controllers, which anybody may create,
	// have no more.
	MinQueueSize = discovery.MinQueueSize
	// MinTransfer is the least that MDTS may allow (Base section 5.1.13.2.1). No block is larger.
	MinTransfer = namespaces.MaxBlock
	// MaxTransfer is the most that MDTS may allow.
	MaxTransfer = 4 << 20
)

const (
	defaultModel    = "nvmf-target"
	defaultIOQueues = 128
	defaultEntries  = 128
	defaultTransfer = 1 << 20
)

// SetDefaults replaces zero values by the defaults; Serial if there is an NQN.
func (c *SubsystemConfig) SetDefaults() {
	if c.Serial == "" && c.NQN != "" {
		c.Serial = derivedSerial(c.NQN)
	}
	c.Model = cmp.Or(c.Model, defaultModel)
	c.CNTLIDMin = cmp.Or(c.CNTLIDMin, MinCNTLID)
	c.CNTLIDMax = cmp.Or(c.CNTLIDMax, nvme.CNTLIDMax)
	c.MaxIOQueues = cmp.Or(c.MaxIOQueues, defaultIOQueues)
	c.MaxQueueSize = cmp.Or(c.MaxQueueSize, defaultEntries)
	c.MaxTransfer = cmp.Or(c.MaxTransfer, defaultTransfer)
}

func (c *SubsystemConfig) validate() error {
	if err := nvme.ValidateNQN(c.NQN); err != nil {
		return fmt.Errorf("subsystem: %w", err)
	}
	fail := func(format string, args ...any) error {
		return fmt.Errorf("subsystem %q: %s", c.NQN, fmt.Sprintf(format, args...))
	}
	switch {
	case c.NQN == nvme.DiscoveryNQN:
		return fail("the discovery subsystem is built in")
	case len(c.Serial) > SerialSize || !isText(c.Serial):
		return fail("serial %q: at most %d printable ASCII characters are allowed", c.Serial,
			SerialSize)
	case len(c.Model) > ModelSize || !isText(c.Model):
		return fail("model %q: at most %d printable ASCII characters are allowed", c.Model,
			ModelSize)
	case c.CNTLIDMin > c.CNTLIDMax || c.CNTLIDMax > nvme.CNTLIDMax:
		return fail("CNTLID range %d to %d: must ascend and end at most at %d", c.CNTLIDMin,
			c.CNTLIDMax, nvme.CNTLIDMax)
	case c.MaxIOQueues < 1 || c.MaxIOQueues > MaxIOQueues:
		return fail("%d I/O queues: 1 to %d are allowed", c.MaxIOQueues, MaxIOQueues)
	case c.MaxQueueSize < MinQueueSize || c.MaxQueueSize > 65536:
		return fail("queue size %d: %d to 65536 are allowed", c.MaxQueueSize, MinQueueSize)
	case c.MaxTransfer < MinTransfer || c.MaxTransfer > MaxTransfer ||
		c.MaxTransfer&(c.MaxTransfer-1) != 0:
		return fail("largest transfer %d: a power of two from %d to %d is allowed", c.MaxTransfer,
			MinTransfer, MaxTransfer)
	}
	for _, h := range c.Hosts {
		if err := nvme.ValidateNQN(h); err != nil {
			return fmt.Errorf("subsystem %q: host: %w", c.NQN, err)
		}
	}
	return nil
}

// derivedSerial is a stable serial number for a subsystem.
func derivedSerial(nqn string) string {
	sum := sha256.Sum256([]byte(nqn))
	return hex.EncodeToString(sum[:10])
}

func isText(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// settings are the part of a subsystem that UpdateSubsystem may change. They are immutable: the
// subsystem gets others, and a controller keeps the settings it was created with, because its host
// has been told of them.
type settings struct {
	SubsystemConfig // without Hosts, Listeners and Namespaces
	hosts           map[string]bool
	listeners       map[string]bool // nil: all
	limiter         *qos.Limiter    // nil: no limits
}

// newSettings has the settings of cfg in place of old, which may be nil.
func newSettings(cfg SubsystemConfig, old *settings) *settings {
	s := &settings{
		SubsystemConfig: cfg, hosts: setOf(cfg.Hosts), listeners: setOf(cfg.Listeners),
	}
	if old == nil {
		old = &settings{}
	}
	s.limiter = qos.NewLimiter(cfg.Limits, old.limiter)
	s.Hosts, s.Listeners, s.Namespaces = nil, nil, nil
	return s
}

// subsystem is an NVM subsystem, or the discovery subsystem.
type subsystem struct {
	t         *Target
	nqn       string
	discovery bool
	settings  atomic.Pointer[settings] // written with mu held
	// namespaces is the table that commands look up.
	namespaces atomic.Pointer[namespaceTable]

	// controllers are the *controller by CNTLID, and count is their number. They are written with
	// mu held.
	controllers sync.Map
	count       atomic.Int64

	mu       sync.Mutex // reactors wait for it: nobody holds it for a step for each of anything
	hosts    association.Hosts[*controller]
	ids      association.Identifiers
	removed  bool
	retiring []*namespace      // removed, but devices or reactors still work for them
	retired  dispatch.Counters // of earlier ones that all hosts could use
	// warned are the warnings of the drives at the last CheckHealth, which alone uses it.
	warned  uint8
	notices notices
}

func newSubsystem(t *Target, cfg SubsystemConfig) *subsystem {
	s := &subsystem{t: t, nqn: cfg.NQN}
	s.settings.Store(newSettings(cfg, nil))
	s.namespaces.Store(newNamespaceTable(nil))
	return s
}

// admit gives c a controller identifier and makes it one of the subsystem's controllers.
func (s *subsystem) admit(c *controller) association.Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg := s.settings.Load()
	if s.removed {
		return association.Unknown(s.nqn, false)
	}
	if err := c.permitted(); err != nil { // since Connect has asked
		return s.refused(err, c.admin, c.hostNQN)
	}
	if o := s.otherHost(c); o != nil && cfg.RefuseDuplicateHosts {
		return association.Duplicate(c.made(), o.made())
	}
	id, ok := s.ids.Take(cfg.CNTLIDMin, cfg.CNTLIDMax)
	if !ok {
		return association.Busy
	}
	c.cntlid = id
	s.add(c)
	return association.Refusal{}
}

// add makes c, which has an identifier, one of the controllers. The caller holds s.mu.
func (s *subsystem) add(c *controller) {
	s.controllers.Store(c.cntlid, c)
	s.count.Add(1)
	if c.proof.Proven.Load() {
		s.hosts.Add(c.hostNQN, c.hostID, c)
	}
}

// otherHost returns a controller of another host with the NQN or the Host Identifier of c, or nil.
// Neither proves the identity of a host: a peer that came first with the names of a host would lock
// it out. So this is refused only if it is configured so, and otherwise, as in nvmet, logged. A
// host that has yet to authenticate may be anybody, and does not count. Discovery is exempt,
// because tools without a configured identifier make one up for each call. The caller holds s.mu.
func (s *subsystem) otherHost(c *controller) *controller {
	if s.discovery {
		return nil
	}
	return s.hosts.Other(c.hostNQN, c.hostID)
}

// prove notes that the host of a controller has authenticated, unless that is to have no other one
// and has got one meanwhile, which it returns.
func (s *subsystem) prove(c *controller) (other *controller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.otherHost(c); o != nil && s.settings.Load().RefuseDuplicateHosts {
		return o
	}
	c.proof.Proven.Store(true)
	s.hosts.Add(c.hostNQN, c.hostID, c)
	return nil
}

// remove removes a controller after all its queues have ended.
func (s *subsystem) remove(c *controller) {
	s.mu.Lock()
	s.controllers.Delete(c.cntlid)
	s.count.Add(-1)
	s.ids.Free(c.cntlid)
	s.hosts.Remove(c.hostNQN, c.hostID, c)
	s.mu.Unlock()
	c.t.auth.ReleasePSKs(&c.proof)
	close(c.gone)
}

// lookup returns the controller with this identifier, or nil.
func (s *subsystem) lookup(cntlid uint16) *controller {
	v, _ := s.controllers.Load(cntlid)
	c, _ := v.(*controller)
	return c
}

// each calls fn with every controller, without holding the lock. Controllers that are admitted
// meanwhile may be left out: they see all that the caller has changed before.
func (s *subsystem) each(fn func(*controller)) {
	s.mu.Lock()   // admissions that have not seen it end first
	s.mu.Unlock() //nolint:staticcheck // see above
	s.controllers.Range(func(_, c any) bool {
		fn(c.(*controller))
		return true
	})
}

// notice is a change of a namespace, for the controllers of its hosts.
type notice struct {
	ns *namespace
	namespaces.Notice
}

// notices are the notices that the controllers of a subsystem do not have yet. mu guards them.
type notices struct {
	mu      sync.Mutex
	waiting map[notice]bool
	telling bool // a goroutine passes them on
}

// fewControllers is how many controllers a reactor looks at in one step.
const fewControllers = 64

// tell passes a notice to the controllers. If there are many, a goroutine does it, one for each
// subsystem; notices that come twice before it passes them on are one. Any goroutine, and reactors.
func (s *subsystem) tell(n notice) {
	if s.count.Load() <= fewControllers {
		n.tell()
		return
	}
	w := &s.notices
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = map[notice]bool{}
	}
	w.waiting[n] = true
	if !w.telling {
		w.telling = true
		go w.tellAll()
	}
}

// tellAll passes notices on until there are no more.
func (w *notices) tellAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.waiting) > 0 {
		for n := range w.waiting {
			delete(w.waiting, n)
			w.mu.Unlock()
			n.tell()
			w.mu.Lock()
		}
	}
	w.telling = false
}

func (n notice) tell() {
	n.ns.notify(n.Notice, func(hostNQN string) bool {
		return n.ns.Attributes().Visible(hostNQN)
	})
}

// counted returns the namespaces that a host may use, and the counters of the removed namespaces
// that it could use. Any goroutine.
func (s *subsystem) counted(hostNQN string) *counted {
	s.mu.Lock()
	all, retiring, removed := s.namespaces.Load(), slices.Clone(s.retiring), s.retired
	s.mu.Unlock() // reactors wait for it
	for _, ns := range visible(retiring, hostNQN) {
		total := ns.Total()
		removed.Add(&total)
	}
	n := countedOf(visible(all.list, hostNQN)...)
	n.removed = removed
	return n
}

// dropNamespaces removes namespaces from the table. The caller holds Target.mu.
func (s *subsystem) dropNamespaces(drop func(*namespace) bool) (dropped []*namespace) {
	var stay []*namespace
	for _, ns := range s.namespaces.Load().list {
		if drop(ns) {
			dropped = append(dropped, ns)
		} else {
			stay = append(stay, ns)
		}
	}
	table := newNamespaceTable(stay)
	s.mu.Lock() // reactors wait for it
	defer s.mu.Unlock()
	s.namespaces.Store(table)
	s.retiring = append(s.retiring, dropped...)
	return dropped
}

// retire keeps the counters of a namespace that nothing uses any more, unless only some hosts could
// use it.
func (s *subsystem) retire(ns *namespace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retiring = slices.DeleteFunc(s.retiring, func(o *namespace) bool { return o == ns })
	if len(ns.Attributes().Hosts) == 0 {
		total := ns.Total()
		s.retired.Add(&total)
	}
}

// teardown ends every association with the subsystem and admits no more.
func (s *subsystem) teardown(why error) {
	s.mu.Lock()
	s.removed = true
	s.mu.Unlock()
	s.each(func(c *controller) { c.fail(why) })
}
