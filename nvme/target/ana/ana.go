// Package ana has asymmetric namespace access (ANA, Base section 8.1.1): each namespace is in a
// group, and each port has a state for every group, which applies to the controllers that came
// through it. States are the states of a port, and a Log is log 0Ch of a controller.
//
// It imports wire formats. States are immutable. A Log belongs to the reactor of its controller.
package ana

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
)

const (
	// MaxGroups is the largest ANA group identifier, and the number of groups. With as many the log
	// fits into one command of 64 KiB. Linux does without ANA if it needs more.
	MaxGroups = 128
	// TransitionTime is ANATT: how long a group may be in nvme.ANAStateChange, in seconds. Linux
	// resets a controller after twice the time.
	TransitionTime = 10
)

// States are the states of a port by group. They are immutable; nil: all groups are optimized.
type States [MaxGroups + 1]nvme.ANAState

// NewStates has the given states by group. Groups that are not named are optimized.
func NewStates(states map[uint32]nvme.ANAState) (s *States, err error) {
	for group, state := range states {
		switch {
		case group < 1 || group > MaxGroups:
			return nil, fmt.Errorf("ANA group %d: 1 to %d are allowed", group, MaxGroups)
		case !slices.Contains(nvme.ANAStates[:], state):
			return nil, fmt.Errorf("ANA group %d: there is no %v", group, state)
		case state == nvme.ANAStateOptimized:
			continue
		case s == nil:
			s = new(States)
			for i := range s {
				s[i] = nvme.ANAStateOptimized
			}
		}
		s[group] = state
	}
	return s, nil
}

// Equal reports whether two ports have the same states.
func (s *States) Equal(o *States) bool { return s == o || s != nil && o != nil && *s == *o }

// Of returns the state of a group.
func (s *States) Of(group uint32) nvme.ANAState {
	if s == nil {
		return nvme.ANAStateOptimized
	}
	return s[group]
}

// HidesCapacity reports whether Identify Namespace does not report the capacity of namespaces of a
// group (NVM section 5.1).
func (s *States) HidesCapacity(group uint32) bool {
	st := s.Of(group)
	return st == nvme.ANAStateInaccessible || st == nvme.ANAStatePersistentLoss
}

// Members are the NSIDs of each group.
type Members [MaxGroups + 1][]uint32

// Add adds the namespace with an NSID, which is larger than the last one.
func (m *Members) Add(group, nsid uint32) { m[group] = append(m[group], nsid) }

// Groups are the groups that have members, ascending, without CHGC.
func (m *Members) Groups(s *States) (list []nvme.ANAGroup) {
	for i, nsids := range m {
		if id := uint32(i); nsids != nil {
			d := nvme.ANADescriptor{AGID: id, ANAS: s.Of(id)}
			list = append(list, nvme.ANAGroup{ANADescriptor: d, NSIDs: nsids})
		}
	}
	return list
}

// Log is log 0Ch of a controller (Base section 5.1.12.1.13). The zero value is a log that the host
// has not read since the last reset.
type Log struct {
	changes uint64          // CHGC; 0: the log has not been made
	groups  []nvme.ANAGroup // ascending
	// page is the log as of the last read from its beginning. A read from an offset continues it.
	// At the next read from the beginning the host sees whether the log has changed since.
	page       []byte
	pageOf     uint64 // changes, as in page
	groupsOnly bool   // page has no NSIDs
}

// LogSize is the size of log 0Ch with all groups and a number of namespaces. The end of a shorter
// log is zeroes, because nvme-cli reads as much, in pieces of 4 KiB.
func LogSize(namespaces int) uint64 {
	return uint64(nvme.ANAHeaderSize + MaxGroups*nvme.ANADescriptorSize + namespaces*4)
}

// Changes is CHGC; 0: the log was not made since the last reset.
func (l *Log) Changes() uint64 { return l.changes }

// Refresh compares the log with the current groups, and counts a change. CHGC of a descriptor is
// that of the log when the descriptor changed.
func (l *Log) Refresh(now []nvme.ANAGroup) (changed bool) {
	changed = l.changes == 0 || len(now) != len(l.groups)
	for i := range now {
		g := &now[i]
		j, found := slices.BinarySearchFunc(l.groups, g.AGID,
			func(g nvme.ANAGroup, id uint32) int { return cmp.Compare(g.AGID, id) })
		if found && l.groups[j].ANAS == g.ANAS && slices.Equal(l.groups[j].NSIDs, g.NSIDs) {
			g.CHGC = l.groups[j].CHGC
			continue
		}
		g.CHGC, changed = l.changes+1, true
	}
	if l.groups = now; changed {
		l.changes++
	}
	return changed
}

// Continues reports whether a read with this offset and RGO continues the last page.
func (l *Log) Continues(off uint64, groupsOnly bool) bool {
	return off > 0 && l.page != nil && l.groupsOnly == groupsOnly
}

// Outdated reports whether the log has changed since the page was made.
func (l *Log) Outdated() bool { return l.pageOf != l.changes }

// Page returns the page that was read last.
func (l *Log) Page() []byte { return l.page }

// Make makes the page of the current groups, with groupsOnly without their namespaces.
func (l *Log) Make(groupsOnly bool, now []nvme.ANAGroup) []byte {
	l.Refresh(now)
	groups := slices.Clone(l.groups)
	for i := range groups {
		if groupsOnly {
			groups[i].NSIDs = nil
		}
	}
	l.page, l.groupsOnly = nvme.AppendANALog(nil, l.changes, groups), groupsOnly
	l.pageOf = l.changes
	return l.page
}
