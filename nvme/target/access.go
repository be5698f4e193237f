package target

import (
	"errors"
	"maps"
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// This file decides which hosts may have controllers, through which ports, and from where.

// Why a host may have no controller.
var (
	errHostNotAllowed = errors.New("the host is not, or no longer, allowed to use the subsystem")
	errNotServed      = errors.New("the listener does not, or no longer, serve the subsystem")
)

// permits says why a host may not have a controller of the subsystem with this admin queue, nil if
// it may.
func (s *subsystem) permits(q *session, hostNQN string) error {
	cfg := s.settings.Load()
	switch {
	case !cfg.serves(q.port):
		return errNotServed
	case !cfg.allows(hostNQN):
		return errHostNotAllowed
	}
	return nil
}

// refused is the refusal of a Connect for what permits returns. Through a port that does not serve
// it a subsystem does not exist.
func (s *subsystem) refused(why error, hostNQN string) refusal {
	if errors.Is(why, errNotServed) {
		r := badData(connectRefused, nvme.ConnectDataOffsetSUBNQN, "a subsystem of the listener",
			s.nqn)
		r.hint = "listeners of the subsystem does not name this listener"
		return r
	}
	return hostRefused(hostNQN)
}

// enforce ends the controllers that are no longer permitted, and returns them. Once what has
// changed is visible, no more of them are admitted.
func (s *subsystem) enforce() (ended []*controller) {
	s.each(func(c *controller) {
		if err := s.permits(c.admin, c.hostNQN); err != nil {
			c.fail(err)
			ended = append(ended, c)
		}
	})
	return ended
}

// allows says whether a host may use the subsystem.
func (s *settings) allows(hostNQN string) bool { return s.AllowAnyHost || s.hosts[hostNQN] }

// serves says whether the subsystem can be reached through a port.
func (s *settings) serves(p *portState) bool {
	return s.listeners == nil || s.listeners[*p.listener.Load()]
}

// samePlaces says whether s can be reached by the same hosts through the same listeners as o.
func (s *settings) samePlaces(o *settings) bool {
	if s.AllowAnyHost != o.AllowAnyHost || !maps.Equal(s.listeners, o.listeners) {
		return false
	}
	return s.AllowAnyHost || maps.Equal(s.hosts, o.hosts)
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

// SetPortListener says that another listener has a port now. Controllers of subsystems that it does
// not serve end.
func (t *Target) SetPortListener(id uint16, listener string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ports = slices.Clone(t.ports)
	for i := range t.ports {
		if t.ports[i].ID == id {
			t.ports[i].Listener = listener
		}
	}
	t.portState(id).listener.Store(&listener) // first: see enforce
	t.discoveryChanged()
	for _, s := range *t.table.Load() {
		s.enforce()
	}
}
