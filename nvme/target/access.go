package target

import (
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// This file decides which hosts may have controllers, through which ports, and from where.

// permits says why a host may not have a controller of the subsystem with this admin queue, nil if
// it may; see Security.lacks.
func (s *subsystem) permits(q *session, hostNQN string, authenticated bool) error {
	cfg := s.settings.Load()
	switch {
	case !cfg.serves(q.port):
		return association.ErrNotServed
	case !cfg.allows(hostNQN):
		return association.ErrNotAllowed
	case !s.t.comesFromNetworks(hostNQN, q):
		return association.ErrElsewhere
	}
	return cfg.Security.lacks(authenticated, q.info.TLS != nil || q.mustConcatenate)
}

// permitted says why a controller may not exist, or not any longer.
func (c *controller) permitted() error {
	return c.sub.permits(c.admin, c.hostNQN, c.provesKey() && c.t.hasKey(c.hostNQN))
}

// provesKey reports whether the host had a key when it connected, which it proves or has proven.
func (c *controller) provesKey() bool {
	return c.proof.Authenticates || association.GeneratedPSK(c.info) != ""
}

// refused returns the refusal of a Connect for an error of permits.
func (s *subsystem) refused(why error, q *session, hostNQN string) association.Refusal {
	requires := ""
	if r := s.settings.Load().Security; r != 0 {
		requires = r.String()
	}
	return association.NotPermitted(why, s.nqn, hostNQN, q.info.Remote.Addr(), requires)
}

// enforce ends the controllers that are no longer permitted, and returns them. The caller has made
// the change visible before, so no more of them are admitted. Their queues may take a while to end,
// but commands that transports still have reach no device.
func (s *subsystem) enforce() (ended []*controller) {
	s.each(func(c *controller) {
		if err := c.permitted(); err != nil {
			c.fail(err)
			c.stopIO()
			ended = append(ended, c)
		}
	})
	return ended
}

// allows reports whether a host may use the subsystem.
func (s *settings) allows(hostNQN string) bool { return s.AllowAnyHost || s.hosts[hostNQN] }

// knows reports whether the configuration has the NQN of a host: among the hosts of the subsystem,
// or in its list of hosts. Where any host is allowed, a host may have made up its NQN.
func (s *subsystem) knows(hostNQN string) bool {
	_, known := s.t.knownHosts.Load(hostNQN)
	return known || s.settings.Load().hosts[hostNQN]
}

// SetHostKnown records whether the list of hosts of the configuration has an NQN, whichever
// subsystems allow that host. Any goroutine may call it.
func (t *Target) SetHostKnown(nqn string, known bool) {
	if known {
		t.knownHosts.Store(nqn, nil)
	} else {
		t.knownHosts.Delete(nqn)
	}
}

// serves reports whether the subsystem can be reached through a port.
func (s *settings) serves(p *portState) bool {
	return s.listeners == nil || s.listeners[*p.listener.Load()]
}

// samePlaces reports whether s can be reached by the same hosts through the same listeners as o.
func (s *settings) samePlaces(o *settings) bool {
	if s.AllowAnyHost != o.AllowAnyHost || s.Security != o.Security ||
		!maps.Equal(s.listeners, o.listeners) {
		return false
	}
	return s.AllowAnyHost || maps.Equal(s.hosts, o.hosts)
}

// comesFromNetworks reports whether a host that is bound to networks connects from one of them.
func (t *Target) comesFromNetworks(hostNQN string, q *session) bool {
	networks := (*t.networks.Load())[hostNQN]
	if networks == nil {
		return true
	}
	from := q.info.Remote.Addr().Unmap().WithZone("")
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(from) })
}

// SetHostNetworks binds a host to networks: in all subsystems, and for discovery, it may only
// connect from these, or from anywhere if there are none. Controllers that came from elsewhere end.
func (t *Target) SetHostNetworks(nqn string, networks []netip.Prefix) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := maps.Clone(*t.networks.Load())
	if slices.Equal(all[nqn], networks) {
		return
	}
	if all[nqn] = networks; len(networks) == 0 {
		delete(all, nqn)
	}
	t.networks.Store(&all) // first: see enforce
	for _, s := range *t.table.Load() {
		s.enforce()
	}
	t.discovery.enforce()
}

// Settled returns a channel that is closed when the reactors have carried out all changes until
// now. From then on no device gets anything from hosts that have lost access.
func (t *Target) Settled() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	done, left := make(chan struct{}), new(atomic.Int64)
	left.Store(int64(len(t.handlers)) + 1)
	answer := func() {
		if left.Add(-1) == 0 {
			close(done)
		}
	}
	for _, h := range t.handlers {
		h.post(func() { // after the walks of onReactors
			h.dispatch.Start(&dispatch.Walk{Next: func() int { return 0 }, Done: answer})
		})
	}
	answer()
	return done
}

// setOf makes a set; nil if there is nothing in the list.
func setOf(list []string) map[string]bool {
	if len(list) == 0 {
		return nil
	}
	set := make(map[string]bool, len(list))
	for _, s := range list {
		set[s] = true
	}
	return set
}

// SetPortListener sets the listener of a port, and the TLS policy that the discovery log shows for
// it. Controllers of subsystems that the listener does not serve end.
func (t *Target) SetPortListener(id uint16, listener string, tls fabric.TLSPolicy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ports = slices.Clone(t.ports)
	for i := range t.ports {
		if t.ports[i].ID == id {
			t.ports[i].Listener, t.ports[i].TLS = listener, tls
		}
	}
	t.portState(id).listener.Store(&listener) // first: see enforce
	t.discoveryChanged()
	for _, s := range *t.table.Load() {
		s.enforce()
	}
}
