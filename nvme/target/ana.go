package target

import (
	"errors"
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// SetANAStates sets the states of the groups of a port. Groups that are not named are optimized.
// Hosts with namespaces in groups that change are notified. Commands that they have sent before
// complete. A controller keeps the state persistent loss as long as it exists (Base section
// 8.1.1.7): where that ends, the hosts are disconnected.
func (t *Target) SetANAStates(port uint16, states map[uint32]nvme.ANAState) error {
	next, err := ana.NewStates(states)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.portState(port).ANA.Swap(next)
	if before.Equal(next) {
		return nil
	}
	for _, s := range *t.table.Load() {
		s.anaChanged(port, before, next)
	}
	return nil
}

// anaChanged notifies the controllers that came through a port and have namespaces in the groups.
func (s *subsystem) anaChanged(port uint16, before, now *ana.States) {
	var changed, revived []*namespaces.Namespace
	for _, ns := range s.Namespaces.Load().List {
		was, is := before.Of(ns.Attributes().ANAGroup), now.Of(ns.Attributes().ANAGroup)
		if was != is {
			changed = append(changed, ns)
		}
		if was != is && was == nvme.ANAStatePersistentLoss {
			revived = append(revived, ns)
		}
	}
	if len(changed) == 0 {
		return
	}
	s.each(func(c *controller) {
		has := func(ns *namespaces.Namespace) bool { return ns.Attributes().Visible(c.HostNQN) }
		switch {
		case c.Info.PortID != port:
		case slices.ContainsFunc(revived, has):
			c.fail(errors.New("an ANA group is no longer in the state persistent loss"))
		case slices.ContainsFunc(changed, has):
			c.h.post(c.ANAChanged)
		}
	})
}

// anaRefuses is the status of an I/O command if the state of its namespace does not allow it.
func (c *cmd) anaRefuses(a *ana.States) nvme.Status {
	if ns := c.namespace(); ns != nil {
		return a.Of(ns.Attributes().ANAGroup).Status()
	}
	return nvme.Success
}
