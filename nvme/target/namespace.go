package target

import (
	"slices"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// namespace is a namespace of one subsystem.
type namespace struct {
	namespaces.Namespace
	sub           *subsystem
	slot          int           // index of this namespace's channel in every Handler
	errorRecovery atomic.Uint32 // as hosts have set it
}

// newNamespace makes a namespace that no table lists yet. The caller holds t.mu.
func (s *subsystem) newNamespace(cfg namespaces.Config) (*namespace, error) {
	ns := &namespace{sub: s}
	if err := ns.Init(s.nqn, cfg, &s.t.common, ns.tell); err != nil {
		return nil, err
	}
	ns.slot = s.t.takeSlot(ns)
	p := s.t.promisesOf(ns.ID)
	ns.Storage, ns.Reservations, ns.Marks = ns, p.reservations, p.marks
	ns.Reservations.Attach(ns)
	ns.Start(s.t.protectionOf(ns.ID))
	return ns, nil
}

// tell passes a notice on, see namespaces.Namespace.Init. Any goroutine.
func (ns *namespace) tell(n namespaces.Notice, concerns func(hostNQN string) bool) {
	switch {
	case n == namespaces.Relimits:
		for _, c := range ns.Channels() {
			h := c.User.(*channel).h
			h.post(h.relink)
		}
	case concerns != nil: // also if it was removed meanwhile, which other hosts are told of
		ns.notify(n, concerns)
	case n == namespaces.Changed && ns.sub.namespaces.Load().get(ns.ID.NSID) != ns:
		// not before it is added, and not after it was removed
	default:
		ns.sub.tell(notice{ns, n})
	}
}

// notify tells the controllers of hosts that a notice concerns. It looks at all controllers, so
// reactors call subsystem.tell.
func (ns *namespace) notify(n namespaces.Notice, concerns func(hostNQN string) bool) {
	ns.sub.each(func(c *controller) {
		if concerns(c.hostNQN) {
			c.h.post(func() { c.notice(n, ns.ID.NSID) })
		}
	})
}

// namespaceTable is an immutable set of namespaces.
type namespaceTable struct {
	list []*namespace // ascending
	byID []*namespace // indexed by NSID, nil where there is none
}

func newNamespaceTable(list []*namespace) *namespaceTable {
	slices.SortFunc(list, func(a, b *namespace) int { return int(a.ID.NSID) - int(b.ID.NSID) })
	t := &namespaceTable{list: list}
	if n := len(list); n > 0 {
		t.byID = make([]*namespace, list[n-1].ID.NSID+1)
	}
	for _, ns := range list {
		t.byID[ns.ID.NSID] = ns
	}
	return t
}

// get returns the namespace, or nil.
func (t *namespaceTable) get(nsid uint32) *namespace {
	if uint64(nsid) < uint64(len(t.byID)) {
		return t.byID[nsid]
	}
	return nil
}
