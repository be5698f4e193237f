package target

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// through connects an admin queue through a port.
func through(r *harness, port uint16, nqn string) *host {
	qi := info(nvme.TransportTCP)
	qi.Local, qi.PortID = netip.MustParseAddrPort("192.0.2.1:4420"), port
	return r.connectHostInfo(0, qi, func(a *connectArgs) { a.sub = nqn })
}

// names are the subsystems and port IDs of the discovery log, as "a1 a2 b2".
func (h *host) names() string {
	_, list := h.discoveryLog()
	var words []string
	for _, e := range list {
		nqn, err := nvme.ParseNQN(&e.SUBNQN)
		h.r.must(err)
		if nqn != nvme.DiscoveryNQN {
			words = append(words, strings.TrimPrefix(nqn, testSub)+string(rune('0'+e.PORTID)))
		}
	}
	return strings.Join(words, " ")
}

// TestListeners: through a listener that does not serve it a subsystem does not exist, neither for
// Connect nor for discovery, and what is served follows changes of the subsystem and of the ports.
func TestListeners(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub + "a", AllowAnyHost: true},
		SubsystemConfig{NQN: testSub + "b", AllowAnyHost: true, Listeners: []string{"two", "x"}},
		SubsystemConfig{
			NQN: testSub + "c", AllowAnyHost: true, Listeners: []string{"three", "two", "one"},
		})
	for i, name := range []string{"one", "two", "three"} {
		p := port(uint16(i+1), nvme.TransportTCP, "192.0.2.1:4420")
		p.Listener = name
		r.must(r.target.AddPort(p))
	}
	r.must(r.target.AddPort(port(4, nvme.TransportTCP, "[fe80::5%eth0]:4420"))) // nobody reaches it

	one, two := through(r, 1, nvme.DiscoveryNQN), through(r, 2, nvme.DiscoveryNQN)
	want := func(first, second string) {
		t.Helper()
		if got := one.names(); got != first {
			t.Errorf("through the first listener: %s, want %s", got, first)
		}
		if got := two.names(); got != second {
			t.Errorf("through the second listener: %s, want %s", got, second)
		}
	}
	want("a1 a2 a3 c1 c2 c3", "a1 a2 a3 b2 c1 c2 c3")

	refused := func(port uint16, nqn string) {
		t.Helper()
		unknown := r.status(r.dial(0), adminArgs(testSub+"unknown").command(), connectRefused)
		qi := info(nvme.TransportTCP)
		qi.PortID = port
		c := r.status(r.dialInfo(0, qi), adminArgs(nqn).command(), connectRefused)
		if c.CQE.Result() != unknown.CQE.Result() || c.CQE.Result() != 1<<16|256 {
			t.Errorf("result %#x, of an unknown subsystem %#x", c.CQE.Result(),
				unknown.CQE.Result())
		}
		r.refusals = r.recorder.Kinds()["connect refused"] - 1
		r.wantRefusal()
		if last := fmt.Sprint(r.recorder.Refusals()[0]); !strings.Contains(last,
			"listeners of the subsystem does not name this listener") {
			t.Errorf("refused with %s", last)
		}
	}
	refused(1, testSub+"b")

	h2, h3 := through(r, 2, testSub+"c"), through(r, 3, testSub+"c")
	_, err := r.target.UpdateSubsystem(SubsystemConfig{
		NQN: testSub + "c", AllowAnyHost: true, Listeners: []string{"three"},
	})
	r.must(err)
	r.w.Settle()
	if !h2.admin.Closed() || h3.admin.Closed() {
		t.Errorf("ended: %v and %v", h2.admin.Closed(), h3.admin.Closed())
	}
	want("a1 a2 a3", "a1 a2 a3 b2")
	refused(2, testSub+"c")

	b := through(r, 2, testSub+"b")
	r.target.SetPortListener(2, "three", fabric.TLSOff)
	r.target.SetPortListener(1, "x", fabric.TLSOff)
	r.w.Settle()
	if !b.admin.Closed() || h3.admin.Closed() {
		t.Errorf("ended: %v and %v", b.admin.Closed(), h3.admin.Closed())
	}
	want("a1 a2 a3 b1", "a1 a2 a3 c2 c3")
	refused(2, testSub+"b")
	through(r, 1, testSub+"b")
}

// from dials from an address.
func from(r *harness, addr string) *fabrictest.Queue {
	qi := info(nvme.TransportTCP)
	qi.Remote = netip.MustParseAddrPort(addr)
	return r.dialInfo(0, qi)
}

// TestHostNetworks: a host that is bound to networks is refused from elsewhere, by discovery, too;
// controllers that are there already end, and others stay.
func TestHostNetworks(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, AllowAnyHost: true})
	bind := func(networks ...string) {
		var list []netip.Prefix
		for _, n := range networks {
			list = append(list, netip.MustParsePrefix(n))
		}
		r.target.SetHostNetworks(testHost, list)
		r.w.Settle()
	}
	at := func(addr string) *host {
		qi := info(nvme.TransportTCP)
		qi.Remote = netip.MustParseAddrPort(addr)
		return r.connectHostInfo(0, qi)
	}
	a, b, o := at("192.0.2.9:1"), at("[2001:db8::9]:1"), r.connectHost(0, asOther)
	d := discoveryHost(r, "192.0.2.1:4420") // from 192.0.2.9
	bind("2001:db8::/64", "10.0.0.0/8")
	if !a.admin.Closed() || !d.admin.Closed() || b.admin.Closed() || o.admin.Closed() {
		t.Errorf("ended: %v %v %v %v", a.admin.Closed(), d.admin.Closed(), b.admin.Closed(),
			o.admin.Closed())
	}
	for _, nqn := range []string{testSub, nvme.DiscoveryNQN} {
		q := from(r, "192.0.2.9:1")
		c := r.status(q, adminArgs(nqn).command(), nvme.ConnectInvalidHost)
		if c.CQE.Result() != 1<<16|512 {
			t.Errorf("result %#x", c.CQE.Result())
		}
		r.refusals = r.recorder.Kinds()["connect refused"] - 1
		r.wantRefusal()
		r.ok(from(r, "[::ffff:10.1.2.3]:1"), adminArgs(nqn).command())
	}
	bind()
	at("192.0.2.9:1")
}

// TestLostAccess: when the reactors have done what a change asks of them, the device gets nothing
// more of a host that has lost access, also if its queue still receives data.
func TestLostAccess(t *testing.T) {
	sub, dev := faultySubsystem(t)
	r := newHarness(t, 1, sub)
	h := r.connectHost(1)
	q := h.io[0]
	r.ok(q, readAt(0))
	q.Lingers, h.admin.Lingers = true, true
	r.ok(h.admin, selfTestCommand(nvme.SelfTestExtended, 1))
	late := write(1, 7)
	late.Late = true
	r.send(q, late)
	r.target.SetHostNetworks(testHost, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})
	settled := r.target.Settled()
	if closed(settled) {
		t.Error("no reactor was waited for")
	}
	r.until("the reactors answer", func() bool { return closed(settled) })
	dev.Fail(func(io *backend.IO) error {
		t.Errorf("the device gets %v", io.Op)
		return nil
	})
	r.w.Advance(100 * time.Millisecond)
	q.Arrive(late)
	r.until("the write is refused", func() bool { return late.Done })
	if st := late.CQE.Status() &^ nvme.More; st != nvme.CommandSequenceError {
		t.Errorf("%v", st)
	}
	if q.Reason == nil || q.Closed() {
		t.Errorf("disconnected with %v, closed %v", q.Reason, q.Closed())
	}
	if strings.Contains(r.log.String(), "self-test") {
		t.Error("the self-test has a result")
	}
}

// TestDuplicateHosts: a host that is connected with another identifier is refused if that is
// configured, on discovery never, and once the other one has gone no more.
func TestDuplicateHosts(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, AllowAnyHost: true})
	as := func(id byte, nqn string) *fabrictest.Command {
		a := adminArgs(nqn)
		a.hostID[0] = id
		return a.command()
	}
	first := r.dial(0)
	r.ok(first, as(1, testSub))
	r.update(func(c *SubsystemConfig) { c.RefuseDuplicateHosts = true })
	c := r.status(r.dial(0), as(2, testSub), nvme.ConnectInvalidHost)
	if c.CQE.Result() != 1<<16 {
		t.Errorf("result %#x", c.CQE.Result())
	}
	r.wantRefusal()
	r.ok(r.dial(0), as(1, testSub))
	r.connectHost(0, asOther, func(a *connectArgs) { a.hostID[0] = 2 })
	r.ok(r.dial(0), as(2, nvme.DiscoveryNQN))
	r.ok(r.dial(0), as(3, nvme.DiscoveryNQN))
	for _, q := range r.queues {
		q.HangUp()
	}
	r.w.Settle()
	r.ok(r.dial(0), as(2, testSub))
}

// TestDuplicateHostsWithKey: who cannot authenticate does not lock a host out, and of two that can
// the second one is refused, also if both had connected before.
func TestDuplicateHostsWithKey(t *testing.T) {
	r, _ := authHarness(t, 1)
	r.update(func(c *SubsystemConfig) { c.RefuseDuplicateHosts = true })
	other := adminArgs(testSub)
	other.hostID[0]++
	stranger, _ := r.connectUnproven(0, other)
	q, _ := r.connectUnproven(0, adminArgs(testSub))
	r.must(r.authenticate(q, testHostSide(t)))
	r.ok(q, propertyGetCommand(nvme.PropertyCAP))
	r.must(r.authenticate(stranger, testHostSide(t)))
	r.until("the second host is refused", stranger.Closed)
	if !strings.Contains(fmt.Sprint(stranger.Reason), "the host is connected as") {
		t.Error(stranger.Reason)
	}
	r.status(r.dial(0), other.command(), nvme.ConnectInvalidHost)
	r.must(r.authenticate(q, testHostSide(t))) // again
	q.HangUp()
	r.w.Settle()
	q, _ = r.connectUnproven(0, other)
	r.must(r.authenticate(q, testHostSide(t)))
	r.ok(q, propertyGetCommand(nvme.PropertyCAP))
}

// TestReferrals: a referral is an entry for the hosts that are told of it, in any chunk, and a
// change is an event. With LSP bit 1 the log has the entries of the port alone.
func TestReferrals(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, AllowAnyHost: true})
	for id := range uint16(2) {
		r.must(r.target.AddPort(port(id+1, nvme.TransportTCP, "192.0.2.1:4420")))
	}
	h := discoveryHost(r, "192.0.2.1:4420")
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventDiscoveryChanged)))
	event := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	referral := func(tr nvme.TransportType, addr string, hosts ...string) Referral {
		return Referral{
			Addr: port(0, tr, addr).Addr, NQN: nvme.DiscoveryNQN, Hosts: hosts,
		}
	}
	cfg := DiscoveryConfig{Referrals: []Referral{
		referral(nvme.TransportTCP, "192.0.2.7:8009"),
		referral(nvme.TransportTCP, "192.0.2.8:8009", otherHost),
		referral(nvme.TransportRDMA, "[2001:db8::7]:4420", otherHost, testHost),
	}}
	r.must(r.target.SetDiscovery(cfg))
	r.w.Settle()
	if !event.Done {
		t.Error("no event")
	}
	hdr, list := h.discoveryLog()
	if len(list) != 6 {
		t.Fatalf("%d entries", len(list))
	}
	for i, want := range []string{"192.0.2.7 8009 1", "2001:db8::7 4420 2"} {
		e := list[4+i]
		if got := fmt.Sprint(nvme.Text(e.TRADDR[:]), " ", nvme.Text(e.TRSVCID[:]), " ",
			e.ADRFAM); got != want || e.SUBTYPE != nvme.SubsystemReferral || e.EFLAGS != 0 {
			t.Errorf("entry %d: %s, %+v", i, got, e)
		}
	}
	whole := r.ok(h.admin, logCommand(nvme.LogDiscovery, 7*1024, 0)).Data
	for off := 0; off < len(whole); off += 700 {
		n := min(700, len(whole)-off)
		got := r.ok(h.admin, logCommand(nvme.LogDiscovery, n, uint64(off))).Data
		if string(got) != string(whole[off:off+n]) {
			t.Errorf("the chunk at %d differs", off)
		}
	}

	local := logCommand(nvme.LogDiscovery, 3*1024, 0)
	local.SQE.GetLog().Set(nvme.LogDiscovery, 3*1024, 0, nvme.DiscoveryLocal, false)
	b := r.ok(h.admin, local).Data
	if n, err := nvme.ParseDiscoveryHeader(b); err != nil || n.NUMREC != 2 || b[1024+4] != 1 {
		t.Errorf("%d entries, %v, port %d", n.NUMREC, err, b[1024+4])
	}
	logs := r.target.discovery.lookup(h.cntlid).discoveryLogs
	h.discoveryLog()
	r.ok(h.admin, local)
	if logs != r.target.discovery.lookup(h.cntlid).discoveryLogs {
		t.Error("what a host asks for by turns is made anew each time")
	}
	pages, err := nvme.Parse[nvme.SupportedPages](r.ok(h.admin,
		logCommand(nvme.LogSupportedPages, nvme.SupportedPagesSize, 0)).Data)
	if err != nil || pages[nvme.LogDiscovery] != 1|1<<17 {
		t.Errorf("log 00h says %#x of log 70h, %v", pages[nvme.LogDiscovery], err)
	}
	r.must(r.target.SetDiscovery(cfg))
	if now, _ := h.discoveryLog(); now.GENCTR != hdr.GENCTR {
		t.Error("the same again is a new generation")
	}
}

// TestDiscoveryNQN: the service has the well-known name and its own one, which it says in Identify
// and in the entries of itself.
func TestDiscoveryNQN(t *testing.T) {
	const own = "nqn.2026-11.io.nvmf-target:discovery"
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, AllowAnyHost: true})
	r.must(r.target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")))
	r.must(r.target.SetDiscovery(DiscoveryConfig{NQN: own}))
	for _, nqn := range []string{nvme.DiscoveryNQN, own} {
		h := through(r, 1, nqn)
		id := h.controller()
		name, err := nvme.ParseNQN(&id.SUBNQN)
		if err != nil || name != own || id.CNTRLTYPE != nvme.ControllerTypeDiscovery {
			t.Errorf("by %s: %s, type %d, %v", nqn, name, id.CNTRLTYPE, err)
		}
		_, list := h.discoveryLog()
		name, err = nvme.ParseNQN(&list[0].SUBNQN)
		if err != nil || name != own || list[0].SUBTYPE != nvme.SubsystemDiscovery {
			t.Errorf("the entry of itself: %s, type %d, %v", name, list[0].SUBTYPE, err)
		}
	}
	if r.target.AddSubsystem(SubsystemConfig{NQN: own}) == nil ||
		r.target.SetDiscovery(DiscoveryConfig{NQN: testSub}) == nil {
		t.Error("a subsystem and the discovery service have the same name")
	}
	r.must(r.target.SetDiscovery(DiscoveryConfig{}))
	r.status(r.dial(0), adminArgs(own).command(), connectRefused)
}
