package target

import (
	"errors"

	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// This file decides which namespaces of its subsystem a host may use. To its controllers others are
// inactive, as if they did not exist (Base section 3.2.1).

// errHidden is why an IO of a host that may no longer use the namespace is not carried out.
var errHidden = errors.New("the host may no longer use the namespace")

// namespace returns the namespace if the host may use it, else nil.
func (c *controller) namespace(nsid uint32) *namespaces.Namespace {
	return c.sub.namespaces.Of(c.hostNQN, nsid)
}

// mayChange reports whether a command that has waited may still change the namespace, for others,
// too: its host may have lost it meanwhile, or the subsystem. Any goroutine.
func (c *controller) mayChange(ns *namespaces.Namespace) bool {
	return c.namespace(ns.ID.NSID) == ns && c.permitted() == nil
}

// namespaces lists the namespaces that the host may use. It looks at all, which are at most
// namespaces.MaxNSID. The caller does not change the list.
func (c *controller) namespaces() []*namespaces.Namespace {
	return namespaces.Visible(c.sub.namespaces.Load().List, c.hostNQN)
}
