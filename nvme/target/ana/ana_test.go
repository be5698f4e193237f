package ana

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestStates: groups without a state are optimized, and only groups and states that exist are
// taken.
func TestStates(t *testing.T) {
	s := testutil.Value(NewStates(map[uint32]nvme.ANAState{
		1: nvme.ANAStateOptimized, 2: nvme.ANAStateInaccessible,
	}))(t)
	testutil.True(t, s.Of(1) == nvme.ANAStateOptimized && s.Of(2) == nvme.ANAStateInaccessible &&
		s.Of(MaxGroups) == nvme.ANAStateOptimized, "%v", s)
	testutil.True(t, s.HidesCapacity(2) && !s.HidesCapacity(1), "capacity of inaccessible groups")
	all := testutil.Value(NewStates(map[uint32]nvme.ANAState{1: nvme.ANAStateOptimized}))(t)
	testutil.True(t, all == nil && all.Equal(nil) && !all.Equal(s) && !s.Equal(nil), "equality")
	for group, state := range map[uint32]nvme.ANAState{
		0: nvme.ANAStateOptimized, MaxGroups + 1: nvme.ANAStateOptimized, 1: 0xF0,
	} {
		_, err := NewStates(map[uint32]nvme.ANAState{group: state})
		testutil.True(t, err != nil, "group %d, state %v is taken", group, state)
	}
}

// TestLog: a change is counted once, for the log and the group that has changed, and a read from an
// offset continues the page that the host has begun to read.
func TestLog(t *testing.T) {
	groups := func(s *States, nsids ...uint32) []nvme.ANAGroup {
		var m Members
		for _, nsid := range nsids {
			m.Add(nsid, nsid) // each in a group of its own
		}
		return m.Groups(s)
	}
	var l Log
	page := l.Make(false, groups(nil, 1, 2))
	testutil.True(t, l.Changes() == 1 && !l.Outdated(), "%d changes", l.Changes())
	testutil.True(t, !l.Refresh(groups(nil, 1, 2)), "nothing has changed")
	s := testutil.Value(NewStates(map[uint32]nvme.ANAState{2: nvme.ANAStateInaccessible}))(t)
	testutil.True(t, l.Refresh(groups(s, 1, 2)) && l.Changes() == 2 && l.Outdated(),
		"a state has changed: %d changes", l.Changes())
	testutil.True(t, l.groups[0].CHGC == 1 && l.groups[1].CHGC == 2, "%+v", l.groups)
	testutil.True(t, l.Continues(4096, false) && !l.Continues(0, false) && !l.Continues(8, true),
		"which reads continue the page")
	testutil.True(t, &l.Page()[0] == &page[0], "the page has changed while it was read")
	short := l.Make(true, groups(s, 1, 2))
	testutil.True(t, len(short) == len(page)-8 && !l.Outdated(), "%d bytes without NSIDs of %d",
		len(short), len(page))
	testutil.True(t, l.Refresh(groups(s, 1)), "a group has gone")
}
