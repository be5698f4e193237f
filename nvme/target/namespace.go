package target

import (
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// newNamespace makes a namespace that no table lists yet. The caller holds t.mu.
func (s *subsystem) newNamespace(cfg namespaces.Config) (*namespaces.Namespace, error) {
	ns := &namespaces.Namespace{Owner: s}
	if err := ns.Init(s.NQN, cfg, &s.t.common, s.teller(ns)); err != nil {
		return nil, err
	}
	ns.Slot = s.t.takeSlot(ns)
	p := s.t.promisesOf(ns.ID)
	ns.Storage, ns.Reservations, ns.Marks = storage{ns}, p.reservations, p.marks
	ns.Reservations.Attach(storage{ns})
	ns.Start(s.t.protectionOf(ns.ID))
	return ns, nil
}

// storage is a namespace as its channels and its reservations see it.
type storage struct{ *namespaces.Namespace }

// teller returns the function that passes notices of a namespace on, see namespaces.Namespace.Init.
func (s *subsystem) teller(ns *namespaces.Namespace) func(namespaces.Notice, func(string) bool) {
	return func(n namespaces.Notice, concerns func(hostNQN string) bool) {
		switch {
		case n == namespaces.Relimits:
			for _, c := range ns.Channels() {
				h := c.User.(*channel).h
				h.post(h.relink)
			}
		case concerns != nil: // also if it was removed meanwhile, which other hosts are told of
			s.notify(ns, n, concerns)
		case n == namespaces.Changed && s.Namespaces.Load().Get(ns.ID.NSID) != ns:
			// not before it is added, and not after it was removed
		default:
			s.tell(notice{ns, n})
		}
	}
}

// notify tells the controllers of hosts that a notice concerns. It looks at all controllers, so
// reactors call tell.
func (s *subsystem) notify(ns *namespaces.Namespace, n namespaces.Notice,
	concerns func(hostNQN string) bool,
) {
	s.each(func(c *controller) {
		if concerns(c.HostNQN) {
			c.h.post(func() { c.Notice(n, ns.ID.NSID) })
		}
	})
}
