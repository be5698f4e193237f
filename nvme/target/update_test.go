package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

const otherHost = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555"

func asOther(a *connectArgs) { a.host = otherHost }

// update changes the subsystem of the tests.
func (r *harness) update(change func(*SubsystemConfig)) (gone <-chan struct{}) {
	r.t.Helper()
	cfg := SubsystemConfig{NQN: testSub, AllowAnyHost: true}
	change(&cfg)
	gone, err := r.target.UpdateSubsystem(cfg)
	r.must(err)
	return gone
}

// TestUpdateHosts: a host that is no longer allowed is disconnected, the I/O that the storage has
// is waited for, and others notice nothing.
func TestUpdateHosts(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 2, sub)
	h, o := r.connectHost(1), r.connectHost(1, asOther)
	dev.Hold(nil)
	r.send(h.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	r.until("the device has the IO", func() bool { return dev.Held() == 1 })
	gone := r.update(func(c *SubsystemConfig) {
		c.AllowAnyHost, c.Hosts = false, []string{otherHost}
	})
	r.w.Settle()
	if !h.admin.Closed() || !h.io[0].Closed() || o.admin.Closed() || o.io[0].Closed() {
		t.Error("other queues are closed than those of the host that was removed")
	}
	r.stays(gone)
	r.status(r.dial(0), adminArgs(testSub).command(), nvme.ConnectInvalidHost|nvme.DNR)
	dev.Release()
	r.must(untilGone(r.w, gone))
	if l := r.target.Controllers(); len(l) != 1 || l[0].HostNQN != otherHost {
		t.Errorf("controllers %+v", l)
	}
	r.ok(o.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))

	r.must(untilGone(r.w, r.update(func(c *SubsystemConfig) { c.Hosts = []string{otherHost} })))
	r.connectHost(0) // any host again
	if o.admin.Closed() {
		t.Error("a host was disconnected when others were allowed")
	}
}

// TestUpdateWhileConnecting: a host is not admitted that was allowed when its Connect began.
func TestUpdateWhileConnecting(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, AllowAnyHost: true})
	s := r.target.find(testSub)
	c := newController(&session{h: r.raw[0], info: new(fabric.QueueInfo)}, s, testHost, testHostID)
	r.must(untilGone(r.w, r.update(func(c *SubsystemConfig) { c.AllowAnyHost = false })))
	if r := s.admit(c); r.st != nvme.ConnectInvalidHost|nvme.DNR || s.lookup(c.cntlid) == c {
		t.Errorf("%v", r.st)
	}
}

// TestUpdateAttributes: nothing that a connected host was told changes; what connects later sees
// the change, and gets a CNTLID of the new range.
func TestUpdateAttributes(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(1)
	before, mqes := h.controller(), nvme.CAP(h.property(nvme.PropertyCAP)).MQES()
	r.must(untilGone(r.w, r.update(func(c *SubsystemConfig) {
		c.Serial, c.Model, c.CNTLIDMin, c.CNTLIDMax = "S2", "M2", 100, 101
		c.MaxIOQueues, c.MaxQueueSize, c.MaxTransfer = 2, 64, 64<<10
	})))
	if now := h.controller(); *now != *before {
		t.Errorf("a connected host sees\n%+v, before\n%+v", now, before)
	}
	if n := nvme.CAP(h.property(nvme.PropertyCAP)).MQES(); n != mqes {
		t.Errorf("MQES %d, before %d", n, mqes)
	}
	r.ok(h.io[0], rw(nvme.NVMRead, 1, 0, 256, make([]byte, 128<<10)))
	const queues = 15<<16 | 15
	late := r.connectHost(0)
	set := r.ok(late.admin, setFeature(nvme.FeatureNumberOfQueues, queues))
	if n := set.CQE.DW0(); n != 1<<16|1 {
		t.Errorf("queues granted: %#x", n)
	}
	id := late.controller()
	if nvme.Text(id.SN[:]) != "S2" || nvme.Text(id.MN[:]) != "M2" || id.MDTS != 4 ||
		nvme.CAP(late.property(nvme.PropertyCAP)).MQES() != 63 {
		t.Errorf("a host that connects later sees %+v", id)
	}
	next := r.connectHost(0)
	if late.cntlid != 100 || next.cntlid != 101 {
		t.Errorf("CNTLID %d and %d, want 100 and 101", late.cntlid, next.cntlid)
	}
	r.status(r.dial(0), adminArgs(testSub).command(), nvme.ConnectControllerBusy)
}

// TestUpdateDiscovery: the discovery log, its generation and the event follow a change of the
// hosts, and no other.
func TestUpdateDiscovery(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, AllowAnyHost: true})
	r.must(r.target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")))
	h := discoveryHost(r, "192.0.2.1:4420")
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventDiscoveryChanged)))
	aer := func() *fabrictest.Command {
		return r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	}
	event := aer()
	for i, step := range []struct {
		change  func(c *SubsystemConfig)
		entries int
		changed bool
	}{
		{func(c *SubsystemConfig) { c.Model = "M2" }, 2, false},
		{func(c *SubsystemConfig) { c.Hosts = []string{otherHost} }, 2, false},
		{func(c *SubsystemConfig) {
			c.AllowAnyHost, c.Hosts = false, []string{otherHost}
		}, 1, true},
		{func(c *SubsystemConfig) {
			c.AllowAnyHost, c.Hosts = false, []string{testHost, otherHost}
		}, 2, true},
		{func(c *SubsystemConfig) {
			c.AllowAnyHost, c.Hosts = false, []string{otherHost, testHost}
		}, 2, false},
		{func(*SubsystemConfig) {}, 2, false}, // to others only
	} {
		before, _ := h.discoveryLog()
		r.update(step.change)
		r.w.Settle()
		if event.Done != step.changed {
			t.Errorf("step %d: event %v", i, event.Done)
		}
		if after, list := h.discoveryLog(); len(list) != step.entries ||
			(after.GENCTR != before.GENCTR) != step.changed {
			t.Errorf("step %d: %d entries, generation %d, then %d", i, len(list), before.GENCTR,
				after.GENCTR)
		}
		if event.Done {
			event = aer()
		}
	}
}

// TestUpdateRefused: a change that is not valid changes nothing.
func TestUpdateRefused(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, AllowAnyHost: true})
	h := r.connectHost(0)
	for _, cfg := range []SubsystemConfig{
		{NQN: testSub + "2"},
		{NQN: nvme.DiscoveryNQN},
		{NQN: testSub, CNTLIDMin: 9, CNTLIDMax: 8},
		{NQN: testSub, Hosts: []string{"a\nb"}},
	} {
		if _, err := r.target.UpdateSubsystem(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
	r.w.Settle()
	if h.admin.Closed() {
		t.Error("the host was disconnected")
	}
}
