package target

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// This file decides which hosts may have controllers, through which ports, and from where.

// Why a host may have no controller.
var (
	errHostNotAllowed = errors.New("the host is not, or no longer, allowed to use the subsystem")
	errNotServed      = errors.New("the listener does not, or no longer, serve the subsystem")
	errElsewhere      = errors.New("the address of the host is in none of its networks")
)

// permits says why a host may not have a controller of the subsystem with this admin queue, nil if
// it may; see Security.lacks.
func (s *subsystem) permits(q *session, hostNQN string, authenticated bool) error {
	cfg := s.settings.Load()
	switch {
	case !cfg.serves(q.port):
		return errNotServed
	case !cfg.allows(hostNQN):
		return errHostNotAllowed
	case !s.t.comesFromNetworks(hostNQN, q):
		return errElsewhere
	}
	return cfg.Security.lacks(authenticated, q.info.TLS != nil || q.mustConcatenate)
}

// permitted says why a controller may not exist, or not any longer.
func (c *controller) permitted() error {
	authenticated := c.proof.Authenticates || generatedIdentity(c.info) != ""
	return c.sub.permits(c.admin, c.hostNQN, authenticated && c.t.hasKey(c.hostNQN))
}

// refused returns the refusal of a Connect for an error of permits. Through a port that does not
// serve it, a subsystem does not exist.
func (s *subsystem) refused(why error, q *session, hostNQN string) refusal {
	r := s.refusedFor(why, q, hostNQN)
	if s.settings.Load().Security != 0 {
		r = concealed(r)
	}
	return r
}

func (s *subsystem) refusedFor(why error, q *session, hostNQN string) refusal {
	switch {
	case errors.Is(why, errNotServed):
		r := badData(connectRefused, nvme.ConnectDataOffsetSUBNQN, "a subsystem of the listener",
			s.nqn)
		r.hint = "listeners of the subsystem does not name this listener"
		return r
	case errors.Is(why, errElsewhere): // it may come from another address later
		r := badData(nvme.ConnectInvalidHost, nvme.ConnectDataOffsetHOSTNQN,
			"an address in the networks of the host", q.info.Remote.Addr())
		r.hint = "networks of the host does not have this address; somebody else may use its NQN"
		return r
	case errors.Is(why, errNoKey), errors.Is(why, errNoTLS):
		return refusal{
			expected: s.settings.Load().Security.String(), received: why,
			hint: "give the host a dhchap_key, or a tls_key for TLS, in the configuration, or it " +
				"is somebody else",
		}
	}
	return hostRefused(hostNQN)
}

// duplicate refuses a controller of a host that is connected as another one.
func duplicate(c, other *controller) refusal {
	name := func(c *controller) string { return fmt.Sprintf("%s, %x", c.hostNQN, c.hostID) }
	r := badData(nvme.ConnectInvalidHost, nvme.ConnectDataOffsetHostID,
		fmt.Sprintf("%s, as from %v", name(other), other.info.Remote.Addr()), name(c))
	r.hint = "give each machine its own /etc/nvme/hostnqn and hostid; or duplicate_hosts: allow"
	return r
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
		h.post(answer)
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
