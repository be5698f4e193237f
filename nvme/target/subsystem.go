package target

import (
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// subsystem is an NVM subsystem, or the discovery subsystem.
type subsystem struct {
	controllers.Subsystem
	t *Target
}

func newSubsystem(t *Target, cfg subsystems.Config) *subsystem {
	s := &subsystem{t: t}
	s.Init(cfg, cfg.NQN == nvme.DiscoveryNQN)
	return s
}

// lookup returns the controller with this identifier, or nil.
func (s *subsystem) lookup(cntlid uint16) *controller {
	if c := s.Lookup(cntlid); c != nil {
		return c.Owner.(*controller)
	}
	return nil
}

// each calls fn with every controller, see controllers.Subsystem.Each.
func (s *subsystem) each(fn func(*controller)) {
	s.Each(func(c *controllers.Controller) { fn(c.Owner.(*controller)) })
}

// teardown ends every association with the subsystem and admits no more.
func (s *subsystem) teardown(why error) {
	s.Close()
	s.each(func(c *controller) { c.fail(why) })
}

// newNamespace makes a namespace that no table lists yet. The caller holds t.mu.
func (s *subsystem) newNamespace(cfg namespaces.Config) (*namespaces.Namespace, error) {
	ns := &namespaces.Namespace{Owner: s}
	if err := ns.Init(s.NQN, cfg, &s.t.common, s.teller(ns)); err != nil {
		return nil, err
	}
	ns.Slot = s.t.takeSlot(ns)
	ns.Storage = storage{ns}
	s.t.shared.Recall(ns)
	ns.Reservations.Attach(storage{ns})
	ns.Start()
	return ns, nil
}

// storage is a namespace as its channels and its reservations see it.
type storage struct{ *namespaces.Namespace }

// teller returns the function that passes notices of a namespace on, see namespaces.Namespace.Init.
func (s *subsystem) teller(ns *namespaces.Namespace) func(namespaces.Notice, func(string) bool) {
	return func(n namespaces.Notice, concerns func(hostNQN string) bool) {
		if n != namespaces.Relimits {
			s.Tell(ns, n, concerns)
			return
		}
		for _, c := range ns.Channels() {
			h := c.User.(*channel).h
			h.post(h.relink)
		}
	}
}
