package controllers

import (
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// Subsystem has the namespaces and the controllers of a subsystem. Any goroutine may use it.
type Subsystem struct {
	NQN        string
	Discovery  bool                                // it is the discovery subsystem
	Settings   atomic.Pointer[subsystems.Settings] // written by Update
	Namespaces namespaces.Set

	// controllers are the *Controller by CNTLID, and count is their number. They are written with
	// mu held.
	controllers sync.Map
	count       atomic.Int64

	mu      sync.Mutex // reactors wait for it: nobody holds it for a step for each of anything
	hosts   association.Hosts[*Controller]
	ids     association.Identifiers
	removed bool

	notices notices
	warned  uint8 // the warnings of the drives at the last CheckHealth, which alone uses it
}

// Init makes a subsystem without controllers and namespaces.
func (s *Subsystem) Init(cfg subsystems.Config, discovery bool) {
	s.NQN, s.Discovery = cfg.NQN, discovery
	s.Settings.Store(subsystems.NewSettings(cfg, nil))
	s.Namespaces.Store(nil)
}

// Update changes the settings.
func (s *Subsystem) Update(now *subsystems.Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Settings.Store(now)
}

// Admit gives c a controller identifier and makes it one of the controllers, unless permitted
// refuses it, which looks at the settings once more.
func (s *Subsystem) Admit(c *Controller, permitted func() association.Refusal) association.Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg := s.Settings.Load()
	if s.removed {
		return association.Unknown(s.NQN, false)
	}
	if r := permitted(); !r.Status.OK() { // since Connect has asked
		return r
	}
	if o := s.other(c); o != nil && cfg.RefuseDuplicateHosts {
		return association.Duplicate(c.Made(), o.Made())
	}
	id, ok := s.ids.Take(cfg.CNTLIDMin, cfg.CNTLIDMax)
	if !ok {
		return association.Busy
	}
	c.CNTLID = id
	s.controllers.Store(id, c)
	s.count.Add(1)
	if c.Proof.Proven.Load() {
		s.hosts.Add(c.HostNQN, c.HostID, c)
	}
	return association.Refusal{}
}

// Other returns a controller of another host with the NQN or the Host Identifier of c, or nil.
// Neither proves the identity of a host: a peer that came first with the names of a host would lock
// it out. So this is refused only if it is configured so, and otherwise, as in nvmet, logged. A
// host that has yet to authenticate may be anybody, and does not count. Discovery is exempt,
// because tools without a configured identifier make one up for each call.
func (s *Subsystem) Other(c *Controller) *Controller {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.other(c)
}

func (s *Subsystem) other(c *Controller) *Controller {
	if s.Discovery {
		return nil
	}
	return s.hosts.Other(c.HostNQN, c.HostID)
}

// Prove notes that the host of a controller has authenticated. If the subsystem refuses duplicate
// hosts, and there is another one by now, Prove returns that instead.
func (s *Subsystem) Prove(c *Controller) (other *Controller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.other(c); o != nil && s.Settings.Load().RefuseDuplicateHosts {
		return o
	}
	c.Proof.Proven.Store(true)
	s.hosts.Add(c.HostNQN, c.HostID, c)
	return nil
}

// Remove removes a controller after all its queues have ended.
func (s *Subsystem) Remove(c *Controller) {
	s.mu.Lock()
	s.controllers.Delete(c.CNTLID)
	s.count.Add(-1)
	s.ids.Free(c.CNTLID)
	s.hosts.Remove(c.HostNQN, c.HostID, c)
	s.mu.Unlock()
	c.Target.Auth.ReleasePSKs(&c.Proof)
	close(c.Gone)
}

// Close admits no more controllers.
func (s *Subsystem) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = true
}

// Lookup returns the controller with this identifier, or nil.
func (s *Subsystem) Lookup(cntlid uint16) *Controller {
	v, _ := s.controllers.Load(cntlid)
	c, _ := v.(*Controller)
	return c
}

// Count is the number of controllers.
func (s *Subsystem) Count() int { return int(s.count.Load()) }

// Each calls fn with every controller, without holding the lock. Controllers that are admitted
// meanwhile may be left out: they see all that the caller has changed before.
func (s *Subsystem) Each(fn func(*Controller)) {
	s.mu.Lock()   // admissions that have not seen it end first
	s.mu.Unlock() //nolint:staticcheck // see above
	s.controllers.Range(func(_, c any) bool {
		fn(c.(*Controller))
		return true
	})
}
