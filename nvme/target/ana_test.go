package target

import (
	"reflect"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

type states = map[uint32]nvme.ANAState

// anaHarness is a target with namespaces 1 and 2 in group 1, and 3 in group 7, and a host at each
// of the ports 1 and 2.
func anaHarness(t *testing.T) (r *harness, a, b *host) {
	t.Helper()
	sub := ramSubsystem(t, 3)
	sub.Namespaces[2].ANAGroup = 7
	r = protectHarness(t, newProtectionStore(), sub)
	second := info(nvme.TransportRDMA)
	second.PortID = 2
	a, b = r.connectHost(1), r.connectHostInfo(1, second)
	return r, a, b
}

func anaCommand(lpo uint64, n int, rgo bool) *fabrictest.Command {
	c := logCommand(nvme.LogANA, n, lpo)
	lsp := uint8(0)
	if rgo {
		lsp = nvme.ANAGroupsOnly
	}
	c.SQE.GetLog().Set(nvme.LogANA, uint64(n), lpo, lsp, false)
	return c
}

// anaLog reads log 0Ch as Linux does, with room for all groups and namespaces.
func (h *host) anaLog(rgo bool) (changes uint64, groups []nvme.ANAGroup) {
	h.r.t.Helper()
	l, groups, err := nvme.ParseANALog(h.r.ok(h.admin, anaCommand(0, anaLogSize, rgo)).Data)
	h.r.must(err)
	return l.CHGC, groups
}

func anaGroup(id uint32, s nvme.ANAState, changes uint64, nsids ...uint32) nvme.ANAGroup {
	return nvme.ANAGroup{
		ANADescriptor: nvme.ANADescriptor{
			AGID: id, ANAS: s, CHGC: changes, NNV: uint32(len(nsids)),
		},
		NSIDs: nsids,
	}
}

func (h *host) wantANA(changes uint64, want ...nvme.ANAGroup) {
	h.r.t.Helper()
	if n, got := h.anaLog(false); n != changes || !reflect.DeepEqual(got, want) {
		h.r.t.Errorf("log %d %+v\nwant %d %+v", n, got, changes, want)
	}
}

// TestANALog: log 0Ch has the groups of the namespaces, in ascending order, with the states of the
// port. The change counts of the log and of each group begin with 1 after a reset and grow with
// every change. What is read from an offset is of the same moment as the begin.
func TestANALog(t *testing.T) {
	const opt, non, inacc = nvme.ANAStateOptimized, nvme.ANAStateNonOptimized,
		nvme.ANAStateInaccessible
	r, a, b := anaHarness(t)
	a.wantANA(1, anaGroup(1, opt, 1, 1, 2), anaGroup(7, opt, 1, 3))
	a.wantANA(1, anaGroup(1, opt, 1, 1, 2), anaGroup(7, opt, 1, 3))
	r.must(r.target.SetANAStates(1, states{1: opt, 7: non, 99: inacc}))
	a.wantANA(2, anaGroup(1, opt, 1, 1, 2), anaGroup(7, non, 2, 3))
	b.wantANA(1, anaGroup(1, opt, 1, 1, 2), anaGroup(7, opt, 1, 3))
	if n, groups := a.anaLog(true); n != 2 || !reflect.DeepEqual(groups,
		[]nvme.ANAGroup{anaGroup(1, opt, 1), anaGroup(7, non, 2)}) {
		t.Errorf("groups only: %d %+v", n, groups)
	}
	// In pieces, while it changes.
	whole := r.ok(a.admin, anaCommand(0, 96, false)).Data
	head := r.ok(a.admin, anaCommand(0, 16, false)).Data
	r.must(r.target.SetANAStates(1, states{7: inacc}))
	rest := append(head, r.ok(a.admin, anaCommand(16, 80, false)).Data...)
	if !slices.Equal(rest, whole) {
		t.Errorf("in pieces %x\nwant %x", rest, whole)
	}
	if again := r.ok(a.admin, anaCommand(0, 16, false)).Data; slices.Equal(again, head) {
		t.Error("the begin does not show that the log has changed")
	}
	r.ok(a.admin, anaCommand(anaLogSize-4, 8, false))
	r.status(a.admin, anaCommand(anaLogSize, 4, false), invalidField)
	// Two changes at once are two.
	r.must(r.target.SetANAStates(1, states{7: non}))
	r.must(r.target.SetANAStates(1, nil))
	a.wantANA(4, anaGroup(1, opt, 1, 1, 2), anaGroup(7, opt, 4, 3))
	r.removeNamespace(2)
	a.wantANA(5, anaGroup(1, opt, 5, 1), anaGroup(7, opt, 4, 3))
	update := NamespaceConfig{NSID: 3}
	r.must(r.target.UpdateNamespace(testSub, update, nil))
	a.wantANA(6, anaGroup(1, opt, 6, 1, 3))
	r.ok(a.admin, propertySetCommand(nvme.PropertyCC, 0))
	r.w.Settle()
	r.ok(a.admin, propertySetCommand(nvme.PropertyCC, uint64(nvme.CCLinux)))
	a.wantANA(1, anaGroup(1, opt, 1, 1, 3))
	for _, bad := range []states{{0: opt}, {MaxANAGroups + 1: opt}, {1: 5}} {
		if r.target.SetANAStates(1, bad) == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
	update.ANAGroup = MaxANAGroups + 1
	if r.target.UpdateNamespace(testSub, update, nil) == nil {
		t.Error("a group that does not exist")
	}
}

// TestANAEventWhileRead: the log changes again while it is read in pieces. The last piece ends the
// masking of the event, which is raised then: what was read is old.
func TestANAEventWhileRead(t *testing.T) {
	r, a, _ := anaHarness(t)
	event := func() *fabrictest.Command {
		return r.send(a.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	}
	r.ok(a.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventANAChanged)))
	first := event()
	r.must(r.target.SetANAStates(1, states{7: nvme.ANAStateNonOptimized}))
	r.until("the event", func() bool { return first.Done })
	second := event()
	head := anaCommand(0, 16, false)
	head.SQE.GetLog().Set(nvme.LogANA, 16, 0, 0, true)
	r.ok(a.admin, head)
	r.must(r.target.SetANAStates(1, states{7: nvme.ANAStateInaccessible}))
	r.w.Settle()
	if second.Done {
		t.Error("the event is not masked")
	}
	r.ok(a.admin, anaCommand(16, 80, false))
	r.until("the second event", func() bool { return second.Done })
	a.anaLog(false)
	third := event()
	r.ok(a.admin, anaCommand(16, 80, false))
	r.w.Settle()
	if third.Done {
		t.Error("an event without a change")
	}
}

// TestANASelfTest: a self-test of a namespace that is inaccessible is refused, and one of all
// namespaces does not read it. One of a namespace that becomes inaccessible does not succeed.
func TestANASelfTest(t *testing.T) {
	sub := ramSubsystem(t, 3)
	d := &recorder{Device: sub.Namespaces[2].Device, info: func(*backend.Info) {}}
	sub.Namespaces[2].Device, sub.Namespaces[2].ANAGroup = d, 7
	r := newHarness(t, 1, sub)
	h := r.connectHost(0)
	r.must(r.target.SetANAStates(1, states{7: nvme.ANAStateInaccessible}))
	r.status(h.admin, selfTestCommand(nvme.SelfTestShort, 3), nvme.ANAInaccessible)
	r.ok(h.admin, selfTestCommand(nvme.SelfTestAbort, 3))
	r.ok(h.admin, selfTestCommand(nvme.SelfTestExtended, nvme.NSIDAll))
	want := nvme.SelfTestResult{DSTS: uint8(nvme.SelfTestExtended) << 4}
	if got := h.selfTestEnds(); got != want {
		t.Errorf("%+v", got)
	}
	if n := len(d.take()); n > 0 {
		t.Errorf("%d reads", n)
	}
	r.must(r.target.SetANAStates(1, nil))
	r.ok(h.admin, selfTestCommand(nvme.SelfTestShort, 3))
	r.must(r.target.SetANAStates(1, states{7: nvme.ANAStateInaccessible}))
	want.DSTS = uint8(nvme.SelfTestShort)<<4 | uint8(nvme.SelfTestAbortedOther)
	if got := h.selfTestEnds(); got != want {
		t.Errorf("%+v", got)
	}
}

// TestANAOfHiddenNamespaces: a host neither learns of the states and groups of namespaces that
// others have, nor is it disconnected for them.
func TestANAOfHiddenNamespaces(t *testing.T) {
	sub := ramSubsystem(t, 2)
	sub.Namespaces[1].ANAGroup, sub.Namespaces[1].Hosts = 7, []string{otherHost}
	r := newHarness(t, 1, sub)
	h, o := r.connectHost(0), r.connectHost(0, asOther)
	events := map[*host]*fabrictest.Command{}
	for _, x := range []*host{h, o} {
		r.ok(x.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventANAChanged)))
		x.anaLog(false)
		events[x] = r.send(x.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	}
	expect := func(what string) {
		t.Helper()
		r.w.Settle()
		if events[h].Done || !events[o].Done {
			t.Errorf("%s: events %v and %v", what, events[h].Done, events[o].Done)
		}
		o.anaLog(false)
		events[o] = r.send(o.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	}
	r.must(r.target.SetANAStates(1, states{7: nvme.ANAStateNonOptimized}))
	expect("a state")
	group := func(id uint32, hosts ...string) {
		t.Helper()
		cfg := NamespaceConfig{NSID: 2, ANAGroup: id, Hosts: hosts}
		r.during(func() error { return r.target.UpdateNamespace(testSub, cfg, nil) })
	}
	group(8, otherHost)
	expect("another group")
	group(7, otherHost, testHost)
	r.w.Settle()
	if !events[h].Done {
		t.Error("a namespace in a group that the host had none in is no event")
	}
	group(7, otherHost)
	r.must(r.target.SetANAStates(1, states{7: nvme.ANAStatePersistentLoss}))
	r.must(r.target.SetANAStates(1, nil))
	r.w.Settle()
	if h.admin.Closed() || !o.admin.Closed() {
		t.Errorf("ended: %v and %v", h.admin.Closed(), o.admin.Closed())
	}
}

// TestANAPersistentLoss: a controller never leaves the state (Base section 8.1.1.7); the host may
// connect another one.
func TestANAPersistentLoss(t *testing.T) {
	r, a, b := anaHarness(t)
	loss := states{7: nvme.ANAStatePersistentLoss}
	r.must(r.target.SetANAStates(1, loss))
	r.must(r.target.SetANAStates(2, states{7: nvme.ANAStateInaccessible}))
	r.must(r.target.SetANAStates(2, nil))
	r.must(r.target.SetANAStates(1, states{7: nvme.ANAStatePersistentLoss, 2: nvme.ANAStateChange}))
	r.w.Settle()
	if n := len(r.target.Controllers()); n != 2 {
		t.Fatalf("%d controllers are left", n)
	}
	r.status(a.io[0], rw(nvme.NVMRead, 3, 0, 1, make([]byte, 512)), nvme.ANAPersistentLoss)
	r.must(r.target.SetANAStates(1, nil))
	r.until("the controller ends", func() bool { return len(r.target.Controllers()) == 1 })
	r.ok(b.io[0], rw(nvme.NVMRead, 3, 0, 1, make([]byte, 512)))
	r.ok(r.connectHost(1).io[0], rw(nvme.NVMRead, 3, 0, 1, make([]byte, 512)))
}

// anaStatuses are those of commands that a state does not allow (Base section 4.2.3.4).
var anaStatuses = map[nvme.ANAState]nvme.Status{
	nvme.ANAStateInaccessible: nvme.ANAInaccessible, nvme.ANAStateChange: nvme.ANATransition,
	nvme.ANAStatePersistentLoss: nvme.ANAPersistentLoss,
}

// TestANAStatuses: commands for more than one namespace, of which one is not accessible (Base
// section 8.1.1.10, NVM section 5.1). TestANASamples has those for one.
func TestANAStatuses(t *testing.T) {
	for _, s := range nvme.ANAStates {
		r, a, b := anaHarness(t)
		r.enableCopy(a)
		r.must(r.target.SetANAStates(1, states{7: s}))
		refused := anaStatuses[s]
		every := setFeature(nvme.FeatureArbitration, 7)
		r.status(a.admin, withNSID(every, nvme.NSIDAll), refused)
		other := withNSID(setFeature(nvme.FeatureReservationPersist, 0), 1)
		r.status(a.admin, other, nvme.Success)
		r.status(a.io[0], command(nvme.NVMFlush, nvme.NSIDAll, nil), refused)
		r.status(a.io[0], command(nvme.NVMFlush, 1, nil), nvme.Success)
		r.status(a.io[0], copyTo(8, nvme.CopyNamespaces, source{nsid: 3, blocks: 1}), refused)
		r.status(a.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)), nvme.Success)
		// Another path would not change that, so the status is none of a path.
		r.status(a.io[0], rw(nvme.NVMRead, nvme.NSIDAll, 0, 1, make([]byte, 512)),
			noNamespace(nvme.NSIDAll))
		hidden := s == nvme.ANAStateInaccessible || s == nvme.ANAStatePersistentLoss
		for h, hidden := range map[*host]bool{a: hidden, b: false} {
			id := h.namespace(3)
			if id.NSZE != 2048 || id.NCAP != 2048 || (id.NUSE == 0) != hidden ||
				(id.NVMCAP == [16]byte{}) != hidden || id.ANAGRPID != 7 || id.NMIC&1 == 0 {
				t.Errorf("%v: NSZE %d NUSE %d NVMCAP %x ANAGRPID %d", s, id.NSZE, id.NUSE,
					id.NVMCAP, id.ANAGRPID)
			}
		}
		r.ok(b.io[0], rw(nvme.NVMWrite, 3, 0, 1, make([]byte, 512)))
	}
}

// TestFeatureOfVanishingNamespace: a namespace may become inactive while a command is prepared.
func TestFeatureOfVanishingNamespace(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	r.must(r.target.SetANAStates(1, states{7: nvme.ANAStateNonOptimized}))
	sub := r.target.find(testSub)
	c := sub.lookup(h.cntlid)
	cm := &cmd{s: c.admin, req: &fabric.Request{}}
	cm.req.SQE.SetNSID(1)
	ns := c.namespace(1)
	before := ns.cfg.Load()
	hidden := *before
	hidden.hosts = map[string]bool{otherHost: true}
	done := make(chan struct{})
	defer func() { <-done }()
	go func() {
		defer close(done)
		for range 200_000 {
			ns.cfg.Store(&hidden)
			ns.cfg.Store(before)
		}
	}()
	for !closed(done) {
		c.feature(nvme.FeatureErrorRecovery).anaRefuses(cm, false)
	}
}
