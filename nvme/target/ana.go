package target

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// Asymmetric namespace access (ANA, Base section 8.1.1): each namespace is in a group, and each
// port says in which state a group is for the controllers that came through it.

const (
	// MaxANAGroups is the largest ANA group identifier, and how many groups there are. With as many
	// the log has room in one command of MinTransfer, without which Linux does without ANA.
	MaxANAGroups = 128
	// ANATransitionTime is ANATT: how long a group may be in nvme.ANAStateChange, in seconds. Linux
	// resets a controller after twice the time.
	ANATransitionTime = 10
)

// anaStates are those of a port by group. They are immutable; nil: all groups are optimized.
type anaStates [MaxANAGroups + 1]nvme.ANAState

// of returns the state of the group of a namespace.
func (a *anaStates) of(ns *namespace) nvme.ANAState {
	return a.ofGroup(ns.cfg.Load().anaGroup)
}

func (a *anaStates) ofGroup(id uint32) nvme.ANAState {
	if a == nil {
		return nvme.ANAStateOptimized
	}
	return a[id]
}

// SetANAStates sets the states of the groups of a port. Groups that are not named are optimized.
// Hosts with namespaces in groups that change are notified. Commands that they have sent before
// complete. A controller keeps the state persistent loss as long as it exists (Base section
// 8.1.1.7): where that ends, the hosts are disconnected.
func (t *Target) SetANAStates(port uint16, states map[uint32]nvme.ANAState) error {
	var next *anaStates
	for group, state := range states {
		switch {
		case group < 1 || group > MaxANAGroups:
			return fmt.Errorf("ANA group %d: 1 to %d are allowed", group, MaxANAGroups)
		case !slices.Contains(nvme.ANAStates[:], state):
			return fmt.Errorf("ANA group %d: there is no %v", group, state)
		case state == nvme.ANAStateOptimized:
			continue
		case next == nil:
			next = new(anaStates)
			for i := range next {
				next[i] = nvme.ANAStateOptimized
			}
		}
		next[group] = state
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.portState(port).ana.Swap(next)
	if before == next || before != nil && next != nil && *before == *next {
		return nil
	}
	for _, s := range *t.table.Load() {
		s.anaChanged(port, before, next)
	}
	return nil
}

// anaChanged notifies the controllers that came through a port and have namespaces in the groups.
func (s *subsystem) anaChanged(port uint16, before, now *anaStates) {
	var changed, revived []*namespace
	for _, ns := range s.namespaces.Load().list {
		was, is := before.of(ns), now.of(ns)
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
		has := func(ns *namespace) bool { return ns.cfg.Load().visible(c.hostNQN) }
		switch {
		case c.info.PortID != port:
		case slices.ContainsFunc(revived, has):
			c.fail(errors.New("an ANA group is no longer in the state persistent loss"))
		case slices.ContainsFunc(changed, has):
			c.h.post(func() { c.gatherANA(c.anaChanged) })
		}
	})
}

// anaChanged notes that log 0Ch is another one, and notifies the host. Admin reactor.
func (c *controller) anaChanged(now []nvme.ANAGroup) {
	c.ana.refresh(now)
	c.raise(eventANA)
}

// anaStates returns the states of the port of the controller, which are in force until they change.
func (c *controller) anaStates() *anaStates { return c.admin.port.ana.Load() }

// refuses is the status of an I/O command that the state of its namespace does not allow.
func (a *anaStates) refuses(c *cmd) nvme.Status {
	if c.req.SQE.NSID() == nvme.NSIDAll && c.op.flags&opEvery != 0 {
		return a.refusesAny(c)
	}
	if ns := c.namespace(); ns != nil {
		return a.of(ns).Status()
	}
	return nvme.Success
}

// refusesAny is the status of a command that is for all namespaces.
func (a *anaStates) refusesAny(c *cmd) nvme.Status {
	for _, ns := range c.s.ctrl.namespaces() {
		if st := a.of(ns).Status(); !st.OK() {
			return st
		}
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
	case set && c.req.SQE.NSID() == nvme.NSIDAll:
		return a.refusesAny(c)
	case f.fsp != nvme.FeatureScopeNamespace || ns == nil:
		return nvme.Success
	}
	st := a.of(ns).Status()
	if f.accesses || set && st == nvme.ANAPersistentLoss {
		return st
	}
	return nvme.Success
}

// hidesCapacity reports whether Identify Namespace does not report the capacity (NVM section 5.1).
func (a *anaStates) hidesCapacity(ns *namespace) bool {
	s := a.of(ns)
	return s == nvme.ANAStateInaccessible || s == nvme.ANAStatePersistentLoss
}

// anaLog is log 0Ch (Base section 5.1.12.1.13). It belongs to the admin reactor.
type anaLog struct {
	changes uint64          // CHGC; 0: the log has not been made since the last reset
	stale   bool            // namespaces have changed since
	groups  []nvme.ANAGroup // ascending
	// page is what was read last from its begin: what is read from an offset continues it, and the
	// host sees at the next begin whether the log has changed since.
	page       []byte
	pageOf     uint64 // changes, as in page
	groupsOnly bool   // page has no NSIDs
}

// anaGroups gathers the groups of the namespaces that a host may use.
type anaGroups struct {
	c       *controller
	list    []*namespace // that it has not come to
	members [MaxANAGroups + 1][]uint32
}

func newANAGroups(c *controller) *anaGroups {
	return &anaGroups{c: c, list: c.sub.namespaces.Load().list}
}

// next gathers some, in one step; see list.Pieces.
func (a *anaGroups) next() int {
	const most = 16
	n := min(len(a.list), most)
	for _, ns := range a.list[:n] {
		if cfg := ns.cfg.Load(); cfg.visible(a.c.hostNQN) {
			a.members[cfg.anaGroup] = append(a.members[cfg.anaGroup], ns.nsid)
		}
	}
	a.list = a.list[n:]
	return min(n, 1)
}

// groups are those that next has gathered, ascending, without CHGC.
func (a *anaGroups) groups() (list []nvme.ANAGroup) {
	states := a.c.anaStates()
	for i, nsids := range &a.members {
		if id := uint32(i); nsids != nil {
			d := nvme.ANADescriptor{AGID: id, ANAS: states.ofGroup(id)}
			list = append(list, nvme.ANAGroup{ANADescriptor: d, NSIDs: nsids})
		}
	}
	return list
}

// gatherANA gathers the groups in pieces, and passes them on. Admin reactor.
func (c *controller) gatherANA(to func([]nvme.ANAGroup)) {
	a := newANAGroups(c)
	c.h.inPieces(a.next, func() { to(a.groups()) })
}

// anaGroups gathers all groups, which takes long if there are many namespaces. Any goroutine.
func (c *controller) anaGroups() []nvme.ANAGroup {
	a := newANAGroups(c)
	for a.next() > 0 {
	}
	return a.groups()
}

// refresh compares the log with how things are now, and counts a change. CHGC of a descriptor is
// that of the log when the descriptor changed.
func (l *anaLog) refresh(now []nvme.ANAGroup) (changed bool) {
	changed = l.changes == 0 || len(now) != len(l.groups)
	for i := range now {
		g := &now[i]
		j, found := l.find(l.groups, g.AGID)
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

// find looks up a group.
func (*anaLog) find(groups []nvme.ANAGroup, id uint32) (int, bool) {
	return slices.BinarySearchFunc(groups, id,
		func(g nvme.ANAGroup, id uint32) int { return cmp.Compare(g.AGID, id) })
}

// anaLogSize is the size of log 0Ch with all groups and namespaces. What there is less is zeroes at
// its end, because nvme-cli reads as much, in pieces of 4 KiB.
const anaLogSize = nvme.ANAHeaderSize + MaxANAGroups*nvme.ANADescriptorSize + MaxNSID*4

// anaPage makes log 0Ch.
func anaPage(c *controller, sqe *nvme.SQE) reply {
	l, log := &c.ana, sqe.GetLog()
	only := log.LSP()&nvme.ANAGroupsOnly != 0
	if log.LPO() == 0 || l.page == nil || l.groupsOnly != only {
		return elsewhere(c.anaGroups, func(now []nvme.ANAGroup) reply {
			l.refresh(now)
			groups := slices.Clone(l.groups)
			for i := range groups {
				if only {
					groups[i].NSIDs = nil
				}
			}
			l.page, l.groupsOnly = nvme.AppendANALog(nil, l.changes, groups), only
			l.pageOf = l.changes
			return reply{data: l.page}
		})
	}
	if l.pageOf != l.changes {
		c.raise(eventANA) // again: the host has read how things were before the last one
	}
	return reply{data: l.page}
}
