package random

import (
	"cmp"
	"slices"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/tests/e2e"
)

// modelPorts are the listeners of the ports: one for the TCP controllers, one for the others.
var modelPorts = [...]string{"tcp 127.0.0.1:0", "rdma 10.0.0.1:4420"}

const modelGroups = 3 // from 1 on

// modelPathStatus is the status of commands that an ANA state does not allow (Base section 8.1.1).
var modelPathStatus = map[nvme.ANAState]nvme.Status{
	nvme.ANAStateInaccessible:   nvme.ANAInaccessible,
	nvme.ANAStatePersistentLoss: nvme.ANAPersistentLoss,
	nvme.ANAStateChange:         nvme.ANATransition,
}

// modelANALog is log 0Ch with the change count of a controller.
type modelANALog struct {
	changes uint64
	groups  []nvme.ANAGroup
}

func modelPort(c int) int {
	if modelControllers[c].variant.IsRDMA {
		return 1
	}
	return 0
}

// state returns the state of a group for a controller.
func (m *model) state(c int, group uint32) nvme.ANAState {
	return cmp.Or(m.states[modelPort(c)][group], nvme.ANAStateOptimized)
}

// path returns the status that the path of an I/O command causes, independent of the command.
func (m *model) path(c int, ns *modelNamespace) nvme.Status {
	if ns.hidden[m.hosts[c]] {
		return nvme.InvalidField | dnr // inactive
	}
	return modelPathStatus[m.state(c, ns.group)]
}

// anyPath is path for a command to all namespaces.
func (m *model) anyPath(c int) (st nvme.Status) {
	for _, ns := range m.namespaces {
		if !ns.hidden[m.hosts[c]] {
			st = cmp.Or(st, m.path(c, ns))
		}
	}
	return st
}

// feature is path for Get Features and Set Features (Base section 8.1.1.10). Reservations are
// features of accessible namespaces.
func (m *model) feature(c int, ns *modelNamespace, fid nvme.FID, set bool) nvme.Status {
	st := m.path(c, ns)
	if fid == nvme.FeatureWriteProtect && !ns.hidden[m.hosts[c]] &&
		(!set || st != nvme.ANAPersistentLoss) {
		return nvme.Success
	}
	return st
}

// groups returns the groups of the namespaces that a controller has, ascending, with their NSIDs.
func (m *model) groups(c int) (groups []nvme.ANAGroup) {
	for group := uint32(1); group <= modelGroups; group++ {
		var g nvme.ANAGroup
		for _, ns := range m.namespaces {
			if ns.group == group && !ns.hidden[m.hosts[c]] {
				g.NSIDs = append(g.NSIDs, ns.nsid)
			}
		}
		if g.AGID, g.ANAS = group, m.state(c, group); len(g.NSIDs) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

// update counts a change, if there is one (Base section 5.1.12.1.13).
func (l *modelANALog) update(now []nvme.ANAGroup) {
	changed := l.changes == 0 || len(now) != len(l.groups)
	for i := range now {
		now[i].CHGC = l.changes + 1
		for _, g := range l.groups {
			if g.AGID == now[i].AGID && g.ANAS == now[i].ANAS &&
				slices.Equal(g.NSIDs, now[i].NSIDs) {
				now[i].CHGC = g.CHGC
			}
		}
		changed = changed || now[i].CHGC > l.changes
	}
	if l.groups = now; changed {
		l.changes++
	}
}

// ana sets the state of a group at random, at one port or at all.
func (x *modelRun) ana() {
	x.T.Helper()
	states := append(slices.Repeat([]nvme.ANAState{
		nvme.ANAStateOptimized, nvme.ANAStateNonOptimized,
	}, 4), nvme.ANAStates[:]...)
	ports := []int{x.rnd.IntN(len(modelPorts))}
	if x.rnd.IntN(4) == 0 {
		ports = []int{0, 1}
	}
	x.setANA(1+x.rnd.Uint32N(modelGroups), states[x.rnd.IntN(len(states))], ports)
}

// accessible makes all namespaces accessible, for a comparison.
func (x *modelRun) accessible() {
	x.T.Helper()
	for i, ns := range x.m.namespaces {
		if len(ns.hidden) == modelHosts {
			x.add(i)
		}
	}
	for group := range modelGroups {
		x.setANA(uint32(group+1), nvme.ANAStateOptimized, []int{0, 1})
	}
}

// setANA sets a state like `nvmf-target ana set`, at one port or at all. Controllers that see the
// end of a persistent loss end (Base section 8.1.1.7).
func (x *modelRun) setANA(group uint32, state nvme.ANAState, ports []int) {
	x.T.Helper()
	set := control.ANASet{Group: group, State: state.String()}
	if len(ports) == 1 {
		set.Listener = modelPorts[ports[0]]
	}
	testutil.Value(control.PostANA.To(x.ctx, x.control, set))(x.T)
	ended := uint32(0)
	if state == nvme.ANAStateChange && x.transition != time.Hour {
		state, ended = nvme.ANAStateInaccessible, group
		x.Until("the end of a transition", func() bool {
			list := testutil.Value(control.GetANA.From(x.ctx, x.control))(x.T)
			return !slices.ContainsFunc(list, func(a control.ANA) bool {
				return a.Group == group && a.State == nvme.ANAStateChange.String()
			})
		})
	}
	var lost []int
	for c := range x.hosts {
		sees := slices.ContainsFunc(x.m.groups(c), func(g nvme.ANAGroup) bool {
			return g.AGID == group && g.ANAS == nvme.ANAStatePersistentLoss
		})
		if sees && slices.Contains(ports, modelPort(c)) && state != nvme.ANAStatePersistentLoss {
			lost = append(lost, c)
		}
	}
	for _, port := range ports {
		x.m.states[port][group] = state
	}
	for _, c := range lost {
		h := &x.hosts[c]
		x.Until("a controller ends after a persistent loss", func() bool {
			return h.c.Err() != nil
		})
		for _, q := range h.queues {
			_ = q.Close() // it has ended
		}
		h.c.Close()
		x.connectModel(c)
	}
	x.anaLogs(ended)
}

// anaLogs compares log 0Ch of all controllers after a change. ended is the group of a transition
// that has ended, after which they may have seen two changes, or 0.
func (x *modelRun) anaLogs(ended uint32) {
	x.T.Helper()
	for i := range x.hosts {
		l := &x.m.ana[i]
		most := l.changes + 2
		l.update(x.m.groups(i))
		x.anaLog(i, ended, most)
	}
}

// anaLog compares log 0Ch of a controller, which has counted at most most changes if a transition
// has ended.
func (x *modelRun) anaLog(i int, ended uint32, most uint64) {
	x.T.Helper()
	const size = 256
	l, lsp := &x.m.ana[i], uint8(x.rnd.IntN(2))
	got := testutil.Value(
		hosttest.GetLog(x.ctx, x.hosts[i].c, nvme.LogANA, nvme.NSIDAll, 0, size, lsp, false))(x.T)
	h := testutil.Value(nvme.Parse[nvme.ANAHeader](got))(x.T)
	for k := range l.groups {
		if l.groups[k].AGID == ended && h.CHGC > l.changes && h.CHGC <= most {
			l.groups[k].CHGC, l.changes = h.CHGC, h.CHGC
		}
	}
	groups := slices.Clone(l.groups)
	for k := range groups {
		if lsp&nvme.ANAGroupsOnly != 0 {
			groups[k].NSIDs = nil
		}
	}
	want := make([]byte, size)
	copy(want, nvme.AppendANALog(nil, l.changes, groups))
	if d := e2e.Differ(got, want); d != "" {
		x.fatal(nil, "controller %d: log 0Ch, %s: %x\nwant %x", i, d, got, want)
	}
}

// identify compares the data that depends on the state and the configuration of a namespace.
func (x *modelRun) identify(c *modelCommand) func() {
	ns := x.m.namespaces[x.rnd.IntN(len(x.m.namespaces))]
	c.state(ns, false)
	return func() {
		op := c.add()
		op.SQE.SetOpcode(nvme.AdminIdentify)
		op.SQE.SetNSID(ns.nsid)
		op.SQE.Identify().Set(nvme.CNSNamespace, 0, 0)
		op.Data = x.memory(c, nvme.IdentifyDataSize)
		c.check = func() {
			var want nvme.IdentifyNamespace
			if !ns.hidden[x.m.hosts[c.c]] {
				want.NSZE, want.ANAGRPID = ns.blocks, ns.group
				switch x.m.state(c.c, ns.group) {
				case nvme.ANAStateInaccessible, nvme.ANAStatePersistentLoss: // NVM section 5.1
				default:
					want.NVMCAP = nvme.MakeUint128(ns.blocks * uint64(ns.blockSize))
				}
			}
			id := testutil.Value(nvme.Parse[nvme.IdentifyNamespace](op.Data))(x.T)
			if id.NSZE != want.NSZE || id.NCAP != want.NSZE || id.ANAGRPID != want.ANAGRPID ||
				id.NVMCAP != want.NVMCAP || want.NVMCAP == nvme.MakeUint128(0) && id.NUSE != 0 {
				x.fatal(c, "%+v, want %+v", id, want)
			}
		}
	}
}
