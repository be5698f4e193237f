package target

import (
	"errors"
	"slices"

	"github.com/nvmf-target/nvmf-target/backend"
)

// This file decides which namespaces of its subsystem a host may use. To its controllers others are
// inactive, as if they did not exist (Base section 3.2.1).

// visible reports whether a host may use the namespace.
func (a *attributes) visible(hostNQN string) bool { return a.hosts == nil || a.hosts[hostNQN] }

// errHidden is why an IO of a host that may no longer use the namespace is not carried out.
var errHidden = errors.New("the host may no longer use the namespace")

// check reports whether the host of an IO may still use the namespace.
func (a *attributes) check(io *backend.IO) error {
	if a.hosts == nil {
		return nil
	}
	if s := queueOf(io); s == nil || a.hosts[s.ctrl.hostNQN] {
		return nil
	}
	return errHidden
}

// namespace returns the namespace if the host may use it, else nil.
func (c *controller) namespace(nsid uint32) *namespace {
	ns := c.sub.namespaces.Load().get(nsid)
	if ns != nil && !ns.cfg.Load().visible(c.hostNQN) {
		return nil
	}
	return ns
}

// mayChange reports whether a command that has waited may still change the namespace, for others,
// too: its host may have lost it meanwhile, or the subsystem. Any goroutine.
func (c *controller) mayChange(ns *namespace) bool {
	return c.namespace(ns.nsid) == ns && c.permitted() == nil
}

// namespaces lists the namespaces that the host may use. The caller does not change the list.
func (c *controller) namespaces() []*namespace { return c.sub.namespacesOf(c.hostNQN) }

// namespacesOf lists the namespaces that a host may use. It looks at all, which are at most
// MaxNSID. The caller does not change the list.
func (s *subsystem) namespacesOf(hostNQN string) []*namespace {
	return visible(s.namespaces.Load().list, hostNQN)
}

// visible returns the namespaces of list that a host may use. It does not change list.
func visible(list []*namespace, hostNQN string) []*namespace {
	hidden := func(ns *namespace) bool { return !ns.cfg.Load().visible(hostNQN) }
	if !slices.ContainsFunc(list, hidden) {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), hidden)
}

// notify tells controllers that a namespace was added, removed or has changed for their hosts. Any
// goroutine.
func (ns *namespace) notify(changed func(hostNQN string) bool) {
	ns.sub.eachSoon(func(c *controller) {
		if changed(c.hostNQN) {
			c.h.post(func() { c.namespaceChanged(ns.nsid) })
		}
	})
}

// changedSince tells controllers of the new attributes that their hosts see.
func (ns *namespace) changedSince(before *attributes) {
	now := ns.cfg.Load()
	other := now.uuid != before.uuid || now.nguid != before.nguid || now.eui64 != before.eui64
	ns.notify(func(hostNQN string) bool {
		visible := now.visible(hostNQN)
		return visible != before.visible(hostNQN) || visible && other
	})
}
