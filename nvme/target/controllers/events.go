package controllers

import (
	"errors"
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// Raise reports an event if the host has enabled it.
func (c *Controller) Raise(k admin.EventKind) {
	c.Events.Raise(k)
	c.Hooks.Raised()
}

// Notice passes a notice of a namespace to the host.
func (c *Controller) Notice(n namespaces.Notice, nsid uint32) {
	switch n {
	case namespaces.Changed:
		c.namespaceChanged(nsid)
	case namespaces.Regroups:
		c.gatherANA(c.anaChanged)
	case namespaces.Degrades:
		c.Raise(admin.EventReliability)
	}
}

func (c *Controller) namespaceChanged(nsid uint32) {
	c.changed.Add(nsid)
	c.Raise(admin.EventNamespace)
	if c.ANALog.Changes() > 0 && !c.anaStale {
		c.anaStale = true
		// Once for all that are added or removed together.
		c.Reactor.Post(func() { c.gatherANA(c.namespacesChanged) })
	}
}

// namespacesChanged reports that log 0Ch is another one because of that.
func (c *Controller) namespacesChanged(now []nvme.ANAGroup) {
	if c.anaStale = false; c.ANALog.Refresh(now) {
		c.Raise(admin.EventANA)
	}
}

// ANAChanged notifies the controllers that came through a port and have namespaces in the groups
// that have another state. It ends those for which persistent loss is over.
func (s *Subsystem) ANAChanged(port uint16, before, now *ana.States) {
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
	s.Each(func(c *Controller) {
		has := func(ns *namespaces.Namespace) bool { return ns.Attributes().Visible(c.HostNQN) }
		switch {
		case c.Info.PortID != port:
		case slices.ContainsFunc(revived, has):
			c.Hooks.Fail(errors.New("an ANA group is no longer in the state persistent loss"))
		case slices.ContainsFunc(changed, has):
			c.Reactor.Post(func() { c.gatherANA(c.anaChanged) })
		}
	})
}

// anaChanged adopts the current groups, and notifies the host.
func (c *Controller) anaChanged(now []nvme.ANAGroup) {
	c.ANALog.Refresh(now)
	c.Raise(admin.EventANA)
}

// ANAStates returns the states of the port of the controller, which are in force until they change.
func (c *Controller) ANAStates() *ana.States { return c.Port.ANA.Load() }

// ANAStatus is the status of an admin command if the state of a namespace does not allow it.
func (c *Controller) ANAStatus(ns *namespaces.Namespace) nvme.Status {
	return c.ANAStates().Of(ns.Attributes().ANAGroup).Status()
}

// anaGroups gathers the groups of the namespaces that a host may use.
type anaGroups struct {
	c       *Controller
	list    []*namespaces.Namespace // that are left
	members ana.Members
}

func newANAGroups(c *Controller) *anaGroups {
	return &anaGroups{c: c, list: c.Subsystem.Namespaces.Load().List}
}

// next gathers some, in one step; see list.Pieces.
func (a *anaGroups) next() int {
	const most = 16
	n := min(len(a.list), most)
	for _, ns := range a.list[:n] {
		if cfg := ns.Attributes(); cfg.Visible(a.c.HostNQN) {
			a.members.Add(cfg.ANAGroup, ns.ID.NSID)
		}
	}
	a.list = a.list[n:]
	return min(n, 1)
}

// gatherANA gathers the groups in pieces, and passes them on.
func (c *Controller) gatherANA(to func([]nvme.ANAGroup)) {
	a := newANAGroups(c)
	c.Reactor.Pieces(a.next, func() { to(a.members.Groups(c.ANAStates())) })
}

// anaGroups gathers all groups, which takes long if there are many namespaces. Any goroutine.
func (c *Controller) anaGroups() []nvme.ANAGroup {
	a := newANAGroups(c)
	for a.next() > 0 {
	}
	return a.members.Groups(c.ANAStates())
}

// anaPage makes log 0Ch.
func anaPage(c *Controller, sqe *nvme.SQE) admin.Reply {
	l, log := &c.ANALog, sqe.GetLog()
	only := log.LSP()&nvme.ANAGroupsOnly != 0
	if !l.Continues(log.LPO(), only) {
		return admin.Elsewhere(c.anaGroups, func(now []nvme.ANAGroup) admin.Reply {
			return admin.Reply{Data: l.Make(only, now)}
		})
	}
	if l.Outdated() {
		c.Raise(admin.EventANA) // again: the host has read the state before the last change
	}
	return admin.Reply{Data: l.Page()}
}
