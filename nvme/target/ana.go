package target

import (
	"errors"
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
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
	before := t.portState(port).ana.Swap(next)
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
	for _, ns := range s.namespaces.Load().List {
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
		has := func(ns *namespaces.Namespace) bool { return ns.Attributes().Visible(c.hostNQN) }
		switch {
		case c.info.PortID != port:
		case slices.ContainsFunc(revived, has):
			c.fail(errors.New("an ANA group is no longer in the state persistent loss"))
		case slices.ContainsFunc(changed, has):
			c.h.post(func() { c.gatherANA(c.anaChanged) })
		}
	})
}

// anaChanged adopts the present groups, and notifies the host. Admin reactor.
func (c *controller) anaChanged(now []nvme.ANAGroup) {
	c.ana.Refresh(now)
	c.raise(admin.EventANA)
}

// anaStates returns the states of the port of the controller, which are in force until they change.
func (c *controller) anaStates() *ana.States { return c.admin.port.ana.Load() }

// anaStatus is the status of a command of the admin queue if the state of a namespace does not
// allow it.
func (c *controller) anaStatus(ns *namespaces.Namespace) nvme.Status {
	return c.anaStates().Of(ns.Attributes().ANAGroup).Status()
}

// anaRefuses is the status of an I/O command if the state of its namespace does not allow it.
func (c *cmd) anaRefuses(a *ana.States) nvme.Status {
	if ns := c.namespace(); ns != nil {
		return a.Of(ns.Attributes().ANAGroup).Status()
	}
	return nvme.Success
}

// anaRefuses is the status of Get Features or Set Features if a feature is not available (Base
// section 8.1.1.10, figure 588).
func (f *feature) anaRefuses(c *cmd, set bool) nvme.Status {
	a, ns := c.s.ctrl.anaStates(), c.namespace()
	switch {
	case a == nil:
		return nvme.Success
	case f.fsp != nvme.FeatureScopeNamespace || ns == nil:
		return nvme.Success
	}
	st := a.Of(ns.Attributes().ANAGroup).Status()
	if f.accesses || set && st == nvme.ANAPersistentLoss {
		return st
	}
	return nvme.Success
}

// anaGroups gathers the groups of the namespaces that a host may use.
type anaGroups struct {
	c       *controller
	list    []*namespaces.Namespace // that are left
	members ana.Members
}

func newANAGroups(c *controller) *anaGroups {
	return &anaGroups{c: c, list: c.sub.namespaces.Load().List}
}

// next gathers some, in one step; see list.Pieces.
func (a *anaGroups) next() int {
	const most = 16
	n := min(len(a.list), most)
	for _, ns := range a.list[:n] {
		if cfg := ns.Attributes(); cfg.Visible(a.c.hostNQN) {
			a.members.Add(cfg.ANAGroup, ns.ID.NSID)
		}
	}
	a.list = a.list[n:]
	return min(n, 1)
}

// gatherANA gathers the groups in pieces, and passes them on. Admin reactor.
func (c *controller) gatherANA(to func([]nvme.ANAGroup)) {
	a := newANAGroups(c)
	c.h.inPieces(a.next, func() { to(a.members.Groups(c.anaStates())) })
}

// anaGroups gathers all groups, which takes long if there are many namespaces. Any goroutine.
func (c *controller) anaGroups() []nvme.ANAGroup {
	a := newANAGroups(c)
	for a.next() > 0 {
	}
	return a.members.Groups(c.anaStates())
}

// anaPage makes log 0Ch.
func anaPage(c *controller, sqe *nvme.SQE) admin.Reply {
	l, log := &c.ana, sqe.GetLog()
	only := log.LSP()&nvme.ANAGroupsOnly != 0
	if !l.Continues(log.LPO(), only) {
		return admin.Elsewhere(c.anaGroups, func(now []nvme.ANAGroup) admin.Reply {
			return admin.Reply{Data: l.Make(only, now)}
		})
	}
	if l.Outdated() {
		c.raise(admin.EventANA) // again: the host has read how things were before the last one
	}
	return admin.Reply{Data: l.Page()}
}
