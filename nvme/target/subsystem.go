package target

import (
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// subsystem is an NVM subsystem, or the discovery subsystem.
type subsystem struct {
	t          *Target
	nqn        string
	discovery  bool
	settings   atomic.Pointer[subsystems.Settings] // written with mu held
	namespaces namespaces.Set                      // written with Target.mu held

	// controllers are the *controller by CNTLID, and count is their number. They are written with
	// mu held.
	controllers sync.Map
	count       atomic.Int64

	mu      sync.Mutex // reactors wait for it: nobody holds it for a step for each of anything
	hosts   association.Hosts[*controller]
	ids     association.Identifiers
	removed bool
	// warned are the warnings of the drives at the last CheckHealth, which alone uses it.
	warned  uint8
	notices notices
}

func newSubsystem(t *Target, cfg subsystems.Config) *subsystem {
	s := &subsystem{t: t, nqn: cfg.NQN}
	s.settings.Store(subsystems.NewSettings(cfg, nil))
	s.namespaces.Store(nil)
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
	ns *namespaces.Namespace
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
	s := n.ns.Owner.(*subsystem)
	s.notify(n.ns, n.Notice, func(hostNQN string) bool {
		return n.ns.Attributes().Visible(hostNQN)
	})
}

// teardown ends every association with the subsystem and admits no more.
func (s *subsystem) teardown(why error) {
	s.mu.Lock()
	s.removed = true
	s.mu.Unlock()
	s.each(func(c *controller) { c.fail(why) })
}
