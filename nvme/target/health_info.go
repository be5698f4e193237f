package target

import (
	"slices"
	"strings"
)

// NamespaceInfo describes a namespace at one moment.
type NamespaceInfo struct {
	SubNQN string
	NSID   uint32
	// Ready is false while the storage is away or does not answer; Degraded says that accepted writes may be lost.
	Ready, Degraded bool
	// Timeouts counts commands that were given up, Orphans is how many IOs of such commands the device still has, with their
	// memory, and Returns counts how often storage that was not ready became so again.
	Timeouts uint64
	Orphans  int
	Returns  uint64
}

// Namespaces lists the namespaces, in the order of subsystem and NSID.
func (t *Target) Namespaces() []NamespaceInfo {
	var list []NamespaceInfo
	for _, s := range *t.table.Load() {
		for _, ns := range s.namespaces.Load().list {
			list = append(list, ns.describe())
		}
	}
	slices.SortStableFunc(list, func(a, b NamespaceInfo) int { return strings.Compare(a.SubNQN, b.SubNQN) })
	return list
}

func (ns *namespace) describe() NamespaceInfo {
	s := &ns.state
	s.mu.Lock()
	defer s.mu.Unlock()
	return NamespaceInfo{
		SubNQN: ns.sub.nqn, NSID: ns.nsid, Ready: !ns.geo.Load().unready, Degraded: s.degraded,
		Timeouts: s.timeouts, Orphans: s.orphans, Returns: s.returns,
	}
}
