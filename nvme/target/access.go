package target

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// This file decides which hosts may have controllers, through which ports, and from where.

// permits returns the reason why a host may not have a controller with this admin queue, or nil.
func (s *subsystem) permits(q *session, hostNQN string, authenticated bool) error {
	return s.Settings.Load().Permits(&subsystems.Applicant{
		NQN: hostNQN, Listener: *q.port.Listener.Load(), From: q.info.Remote.Addr(),
		Authenticated: authenticated, Encrypted: q.info.TLS != nil || q.mustConcatenate,
	}, s.t.hosts)
}

// permitted returns the reason why a controller may not exist, or not any longer; nil: it may.
func (c *controller) permitted() error {
	return c.sub.permits(c.admin, c.HostNQN, c.provesKey() && c.t.hasKey(c.HostNQN))
}

// mayChange reports whether a command that has waited may still change the namespace, for others,
// too: its host may have lost it meanwhile, or the subsystem. Any goroutine.
func (c *controller) mayChange(ns *namespaces.Namespace) bool {
	return c.Namespace(ns.ID.NSID) == ns && c.permitted() == nil
}

// admit makes the controller one of its subsystem's.
func (c *controller) admit() association.Refusal {
	return c.sub.Admit(&c.Controller, func() association.Refusal {
		if err := c.permitted(); err != nil {
			return c.sub.refused(err, c.admin, c.HostNQN)
		}
		return association.Refusal{}
	})
}

// provesKey reports whether the host had a key when it connected, which it proves or has proven.
func (c *controller) provesKey() bool {
	return c.Proof.Authenticates || association.GeneratedPSK(c.Info) != ""
}

// refused returns the refusal of a Connect for an error of permits.
func (s *subsystem) refused(why error, q *session, hostNQN string) association.Refusal {
	requires := ""
	if r := s.Settings.Load().Security; r != 0 {
		requires = r.String()
	}
	return association.NotPermitted(why, s.NQN, hostNQN, q.info.Remote.Addr(), requires)
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

// EnforceKeys ends the controllers of hosts that have lost their key, and need one.
func (t *Target) EnforceKeys() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.keysChanged {
		return
	}
	t.keysChanged = false
	for _, s := range *t.table.Load() {
		s.enforce()
	}
	t.discovery.enforce()
	t.discoveryChanged() // it has only subsystems that a host could use
}

// SetHostKnown records whether the list of hosts of the configuration has an NQN, whichever
// subsystems allow that host. Any goroutine may call it.
func (t *Target) SetHostKnown(nqn string, known bool) {
	t.hosts.SetKnown(nqn, known)
}

// SetHostNetworks binds a host to networks: in all subsystems, and for discovery, it may only
// connect from these, or from anywhere if there are none. Controllers that came from elsewhere end.
func (t *Target) SetHostNetworks(nqn string, networks []netip.Prefix) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.hosts.SetNetworks(nqn, networks) { // first: see enforce
		return
	}
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
	t.portState(id).Listener.Store(&listener) // first: see enforce
	t.discoveryChanged()
	for _, s := range *t.table.Load() {
		s.enforce()
	}
}
