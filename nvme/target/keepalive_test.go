package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestKeepAlive: the timer expires between KATO and 1.5 KATO; traffic on any queue restarts it; 0
// turns it off.
func TestKeepAlive(t *testing.T) {
	const kato = 5000
	r := newHarness(t, 2, ramSubsystem(t, 1))
	with := func(ms uint32) func(*connectArgs) { return func(a *connectArgs) { a.kato = ms } }
	h, off := r.connectHost(1, with(kato)), r.connectHost(1)
	r.ok(h.admin, command(nvme.AdminKeepAlive, 0, nil))
	r.status(off.admin, command(nvme.AdminKeepAlive, 0, nil), nvme.KATOInvalid|nvme.DNR)
	for range 20 { // traffic of an I/O queue only (Q08)
		r.w.Advance(3e9)
		r.ok(h.io[0], command(nvme.NVMFlush, 1, nil))
	}
	r.w.Advance(4.9e9)
	if h.admin.Closed() {
		t.Fatal("expired early")
	}
	r.w.Advance(2.7e9)
	if !h.admin.Closed() || !h.io[0].Closed() {
		t.Fatal("did not expire")
	}
	if off.admin.Closed() || off.io[0].Closed() || len(r.target.Controllers()) != 1 {
		t.Error("another controller expired, too")
	}
	r.w.Advance(24 * 3600e9)
	if off.admin.Closed() {
		t.Error("a controller without keep alive expired")
	}
}

// TestKeepAliveAfterStall: when this process stood still, commands may wait unread, so the first
// check after that does not expire.
func TestKeepAliveAfterStall(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.connectHost(0, func(a *connectArgs) { a.kato = 5000 })
	k := &r.target.find(testSub).lookup(h.cntlid).alive
	// thirty seconds passed without a check
	k.lastCheck, k.lastSeen = k.lastCheck-30e9, k.lastSeen-30e9
	r.w.Advance(1.3e9)
	if h.admin.Closed() {
		t.Fatal("expired because this process stood still")
	}
	r.w.Advance(7.5e9)
	if !h.admin.Closed() {
		t.Error("did not expire afterwards")
	}
}

// TestKeepAliveValues: rounding and limits of KATO, in Connect and as a feature (F19).
func TestKeepAliveValues(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	for ms, want := range map[uint32]uint32{
		0: 0, 1: 1000, 1000: 1000, 1001: 2000, 5000: 5000,
		maxKeepAlive - 1: maxKeepAlive, maxKeepAlive: maxKeepAlive,
	} {
		h := r.connectHost(0, func(a *connectArgs) { a.kato = ms })
		if got := r.ok(h.admin,
			getFeature(nvme.FeatureKeepAliveTimer, 0, 0)).CQE.DW0(); got != want {
			t.Errorf("KATO %d: %d, want %d", ms, got, want)
		}
		h.hangUp()
		r.w.Settle()
	}
	for _, ms := range []uint32{maxKeepAlive + 1, 0xFFFFFFFF} {
		a := adminArgs(testSub)
		a.kato = ms
		if c := r.status(r.dial(0), a.command(), connectMalformed); c.CQE.Result() != 48 {
			t.Errorf("KATO %d: result %#x", ms, c.CQE.Result())
		}
		r.status(r.connectHost(0).admin, setFeature(nvme.FeatureKeepAliveTimer, ms),
			nvme.KATOInvalid|nvme.DNR)
	}
	h := r.connectHost(0)
	r.ok(h.admin, setFeature(nvme.FeatureKeepAliveTimer, 1500))
	if got := r.ok(h.admin, getFeature(nvme.FeatureKeepAliveTimer, 0, 0)).CQE.DW0(); got != 2000 {
		t.Errorf("KATO %d, want 2000", got)
	}
	r.ok(h.admin, setFeature(nvme.FeatureKeepAliveTimer, 0))
	r.w.Advance(3600e9)
	r.ok(h.admin, setFeature(nvme.FeatureKeepAliveTimer, 2000))
	r.w.Advance(3.1e9)
	if !h.admin.Closed() {
		t.Error("the new timeout has no effect")
	}
}

// TestDiscoveryTimeout: a discovery controller without KATO expires after two minutes without
// traffic.
func TestDiscoveryTimeout(t *testing.T) {
	r := newHarness(t, 1)
	h := r.connectHost(0, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN })
	r.w.Advance(110e9)
	r.ok(h.admin, identifyCommand(nvme.CNSController, 0))
	r.w.Advance(119e9)
	if h.admin.Closed() {
		t.Fatal("expired early")
	}
	r.w.Advance(62e9)
	if !h.admin.Closed() {
		t.Error("did not expire")
	}
}
