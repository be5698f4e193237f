package namespaces

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// Table is an immutable list of namespaces.
type Table struct {
	List []*Namespace // ascending
	byID []*Namespace // indexed by NSID, nil where there is none
}

// Get returns the namespace, or nil.
func (t *Table) Get(nsid uint32) *Namespace {
	if uint64(nsid) < uint64(len(t.byID)) {
		return t.byID[nsid]
	}
	return nil
}

// Set has the namespaces of a subsystem. Load may be called on the I/O path.
type Set struct {
	table atomic.Pointer[Table] // never nil after the first Store

	mu       sync.Mutex
	retiring []*Namespace      // removed, but devices or reactors still work for them
	retired  dispatch.Counters // of earlier ones that all hosts could use
}

// Load returns the current table.
func (s *Set) Load() *Table { return s.table.Load() }

// Store replaces the table by one of these namespaces, which it sorts. The caller serializes calls
// of Store and Drop.
func (s *Set) Store(list []*Namespace) {
	slices.SortFunc(list, func(a, b *Namespace) int { return int(a.ID.NSID) - int(b.ID.NSID) })
	t := &Table{List: list}
	if n := len(list); n > 0 {
		t.byID = make([]*Namespace, list[n-1].ID.NSID+1)
	}
	for _, ns := range list {
		t.byID[ns.ID.NSID] = ns
	}
	s.table.Store(t)
}

// Drop removes namespaces from the table. Their counters count until Retired.
func (s *Set) Drop(drop func(*Namespace) bool) (dropped []*Namespace) {
	var stay []*Namespace
	for _, ns := range s.Load().List {
		if drop(ns) {
			dropped = append(dropped, ns)
		} else {
			stay = append(stay, ns)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Store(stay)
	s.retiring = append(s.retiring, dropped...)
	return dropped
}

// Retired keeps the counters of a namespace that nothing uses any more, unless only some hosts
// could use it.
func (s *Set) Retired(ns *Namespace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retiring = slices.DeleteFunc(s.retiring, func(o *Namespace) bool { return o == ns })
	if len(ns.Attributes().Hosts) == 0 {
		total := ns.Total()
		s.retired.Add(&total)
	}
}

// Of returns the namespace if a host may use it, else nil.
func (s *Set) Of(hostNQN string, nsid uint32) *Namespace {
	ns := s.Load().Get(nsid)
	if ns != nil && !ns.Attributes().Visible(hostNQN) {
		return nil
	}
	return ns
}

// Counted returns the namespaces that a host may use, and the counters of the removed namespaces
// that it could use.
func (s *Set) Counted(hostNQN string) ([]*Namespace, dispatch.Counters) {
	s.mu.Lock()
	all, retiring, removed := s.Load().List, slices.Clone(s.retiring), s.retired
	s.mu.Unlock()
	for _, ns := range Visible(retiring, hostNQN) {
		total := ns.Total()
		removed.Add(&total)
	}
	return Visible(all, hostNQN), removed
}

// Visible returns the namespaces of list that a host may use. It looks at all of them, and does not
// change list.
func Visible(list []*Namespace, hostNQN string) []*Namespace {
	hidden := func(ns *Namespace) bool { return !ns.Attributes().Visible(hostNQN) }
	if !slices.ContainsFunc(list, hidden) {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), hidden)
}
