package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestNamespaceEvents: a change is reported exactly once, then masked until log 04h is read, and
// only if the host has enabled the event.
func TestNamespaceEvents(t *testing.T) {
	sub := ramSubsystem(t, 1)
	extra := ramDevice(t, 1<<20, 512)
	r := newHarness(t, 2, sub)
	h := r.connectHost(1)
	aer := func() *fabrictest.Command {
		return r.send(h.admin,
			command(nvme.AdminAsyncEventReq, 0, nil))
	}
	add := func(nsid uint32) {
		r.must(r.target.AddNamespace(testSub, NamespaceConfig{NSID: nsid, Device: extra}))
		r.w.Settle()
	}
	remove := func(nsid uint32) {
		r.removeNamespace(nsid)
		r.w.Settle()
	}
	changed := func(rae bool) []uint32 {
		c := logCommand(nvme.LogChangedNamespaces, 4096, 0)
		c.SQE.GetLog().Set(nvme.LogChangedNamespaces, 4096, 0, 0, rae)
		l, err := nvme.ParseNamespaceList(r.ok(h.admin, c).Data)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}

	first := aer()
	add(2)
	if first.Done {
		t.Fatal("an event that was not enabled")
	}
	if l := changed(false); len(l) != 1 || l[0] != 2 {
		t.Errorf("changed %v, want [2]", l)
	}
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventNamespaceChanged)))
	remove(2)
	if !first.Done || nvme.AsyncEvent(first.CQE.DW0()) != nvme.AsyncNamespaceChanged ||
		!first.CQE.Status().OK() {
		t.Fatalf("event %v %#x %v", first.Done, first.CQE.DW0(), first.CQE.Status())
	}
	second := aer()
	add(3)
	if second.Done {
		t.Error("a masked event")
	}
	if l := changed(true); len(l) != 2 || l[0] != 2 || l[1] != 3 {
		t.Errorf("changed %v, want [2 3]", l)
	}
	remove(3)
	if second.Done {
		t.Error("RAE unmasked the event")
	}
	if l := changed(false); len(l) != 2 {
		t.Errorf("changed %v", l)
	}
	if l := changed(false); len(l) != 0 {
		t.Errorf("changed %v after it was read", l)
	}
	if second.Done {
		t.Error("an event for a change that the log has reported")
	}
	add(4)
	if !second.Done {
		t.Error("no event")
	}
	// Without a request the event waits for one.
	changed(false)
	remove(4)
	third := aer()
	if !third.Done {
		t.Error("the event did not wait")
	}
	if id, _ := nvme.Parse[nvme.IdentifyNamespace](r.ok(h.admin,
		identifyCommand(nvme.CNSNamespace, 4)).Data); id.NSZE != 0 {
		t.Error("the removed namespace is still shown")
	}
	r.status(h.io[0], rw(nvme.NVMRead, 4, 0, 1, make([]byte, 512)), inactiveNamespace)
}

// TestChangedNamespacesOverflow: more than 1024 changes make the list FFFFFFFFh.
func TestChangedNamespacesOverflow(t *testing.T) {
	var l changedNamespaces
	for i := range uint32(nvme.NamespacesPerList) {
		l.add(2000 - i)
		l.add(2000 - i)
	}
	if l.overflow || len(l.nsids) != nvme.NamespacesPerList ||
		l.nsids[0] != 2000-nvme.NamespacesPerList+1 {
		t.Errorf("overflow %v, %d entries", l.overflow, len(l.nsids))
	}
	l.add(1)
	if !l.overflow {
		t.Error("no overflow")
	}
	page := changedPage(&controller{changed: l}, new(nvme.SQE))
	if ids, _ := nvme.ParseNamespaceList(page.data); len(ids) != 1 ||
		ids[0] != nvme.ChangedNamespacesOverflow {
		t.Errorf("list %v", ids)
	}
}

// TestAsyncEventLimit: requests beyond the limit are refused (M12), and outstanding ones come back
// when the queue ends.
func TestAsyncEventLimit(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	for range asyncLimit {
		r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	}
	r.status(h.admin, command(nvme.AdminAsyncEventReq, 0, nil), nvme.AERLimitExceeded|nvme.DNR)
	if n := h.admin.Outstanding(); n != asyncLimit {
		t.Errorf("%d outstanding", n)
	}
	h.admin.HangUp()
	if n := h.admin.Outstanding(); n != 0 {
		t.Errorf("%d did not come back", n)
	}
}

// TestANAEventOfManyNamespaces: the ANA log is made anew once for all namespaces that are added
// together, because that takes longer the more there are.
func TestANAEventOfManyNamespaces(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0)
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventANAChanged)))
	event := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	h.anaLog(false)
	c := r.target.find(testSub).lookup(h.cntlid)
	log := &c.ana.groups[0]
	for nsid := range uint32(3) {
		cfg := NamespaceConfig{NSID: 10 + nsid, Device: ramDevice(t, 1<<20, 512)}
		r.must(r.target.AddNamespace(testSub, cfg))
		c.namespaceChanged(cfg.NSID)
	}
	if &c.ana.groups[0] != log {
		t.Error("the log is made anew for each namespace")
	}
	r.w.Settle()
	if !event.Done {
		t.Error("no event")
	}
	h.wantANA(2, anaGroup(1, nvme.ANAStateOptimized, 2, 1, 10, 11, 12))
}
