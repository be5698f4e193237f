package target

import (
	"net/netip"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/fabrictest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func port(id uint16, tr nvme.TransportType, addr string) Port {
	return Port{ID: id, Addr: fabric.Addr{Transport: tr, AddrPort: netip.MustParseAddrPort(addr)}}
}

func (h *host) discoveryLog() (*nvme.DiscoveryHeader, []*nvme.DiscoveryEntry) {
	h.r.t.Helper()
	hdr, err := nvme.ParseDiscoveryHeader(h.r.ok(h.admin,
		logCommand(nvme.LogDiscovery, 20, 0)).Data)
	h.r.must(err)
	var list []*nvme.DiscoveryEntry
	if hdr.NUMREC > 0 {
		b := h.r.ok(h.admin, logCommand(nvme.LogDiscovery, int(hdr.NUMREC)*1024, 1024)).Data
		for ; len(b) > 0; b = b[1024:] {
			e, err := nvme.Parse[nvme.DiscoveryEntry](b)
			h.r.must(err)
			list = append(list, e)
		}
	}
	return hdr, list
}

func discoveryHost(r *harness, local string) *host {
	qi := info(nvme.TransportTCP)
	qi.Local = netip.MustParseAddrPort(local)
	return r.connectHostInfo(0, qi, func(a *connectArgs) { a.sub = nvme.DiscoveryNQN })
}

// TestDiscoveryQueue: the queue of a discovery controller has no more entries than a host may rely
// on.
func TestDiscoveryQueue(t *testing.T) {
	r := newHarness(t, 1)
	a := adminArgs(nvme.DiscoveryNQN)
	a.sqsize = MinQueueSize
	r.status(r.dial(0), a.command(), connectMalformed)
	h := discoveryHost(r, "192.0.2.1:4420")
	if n := nvme.CAP(h.property(nvme.PropertyCAP)).MQES(); n != defaultEntries-1 {
		t.Errorf("MQES %d", n) // Linux warns if it is less than its queue_size
	}
	if h.admin.Depth != MinQueueSize {
		t.Errorf("a queue of %d entries", h.admin.Depth)
	}
}

// TestDiscoveryLog: every port and allowed subsystem, real addresses for wildcards, the self entry,
// and the generation counter.
func TestDiscoveryLog(t *testing.T) {
	open := SubsystemConfig{NQN: testSub, AllowAnyHost: true}
	mine := SubsystemConfig{NQN: testSub + ".mine", Hosts: []string{testHost}}
	closed := SubsystemConfig{NQN: testSub + ".closed", Hosts: []string{testHost + "0"}}
	closed.Hosts[0] = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555556"
	noHosts := SubsystemConfig{NQN: testSub + ".nohosts"}
	r := newHarness(t, 1, open, mine, closed, noHosts)
	r.must(r.target.AddPort(port(1, nvme.TransportTCP, "0.0.0.0:4420")))
	r.must(r.target.AddPort(port(2, nvme.TransportRDMA, "[2001:db8::5]:4421")))
	r.must(r.target.AddPort(port(3, nvme.TransportTCP, "[::]:4422")))
	r.must(r.target.AddPort(port(4, nvme.TransportTCP, "[fe80::5%eth0]:4420")))

	h4 := discoveryHost(r, "192.0.2.1:4420")
	hdr, list := h4.discoveryLog()
	if hdr.GENCTR == 0 || hdr.NUMREC != 9 || hdr.RECFMT != 0 {
		t.Errorf("header %+v", hdr)
	}
	seen := map[string]int{}
	for _, e := range list {
		nqn, err := nvme.ParseNQN(&e.SUBNQN)
		if err != nil {
			t.Error(err)
		}
		seen[nqn]++
		want := map[uint16][2]string{
			1: {"192.0.2.1", "4420"}, 2: {"2001:db8::5", "4421"},
			3: {"192.0.2.1", "4422"},
		}[e.PORTID]
		if nvme.Text(e.TRADDR[:]) != want[0] || nvme.Text(e.TRSVCID[:]) != want[1] {
			t.Errorf("port %d: %q %q", e.PORTID, nvme.Text(e.TRADDR[:]), nvme.Text(e.TRSVCID[:]))
		}
		if fam := e.ADRFAM; (fam == nvme.AddressIPv6) != (e.PORTID == 2) {
			t.Errorf("port %d: family %d", e.PORTID, fam)
		}
		if (e.TRTYPE == nvme.TransportRDMA) != (e.PORTID == 2) || e.CNTLID != nvme.CNTLIDDynamic ||
			e.ASQSZ < 32 {
			t.Errorf("%+v", e)
		}
		self := nqn == nvme.DiscoveryNQN
		if self != (e.SUBTYPE == nvme.SubsystemDiscovery) ||
			self != (e.EFLAGS == nvme.EFLAGSPersistent|nvme.EFLAGSDuplicate) {
			t.Errorf("%s: type %d, flags %#x", nqn, e.SUBTYPE, e.EFLAGS)
		}
	}
	if len(seen) != 3 || seen[testSub] != 3 || seen[testSub+".mine"] != 3 ||
		seen[nvme.DiscoveryNQN] != 3 {
		t.Errorf("subsystems %v", seen)
	}

	h6 := discoveryHost(r, "[2001:db8::9]:4422") // cannot reach the IPv4 wildcard
	if hdr, _ := h6.discoveryLog(); hdr.NUMREC != 6 {
		t.Errorf("%d entries over IPv6", hdr.NUMREC)
	}
	local := discoveryHost(r, "[fe80::5%eth0]:4420")
	if hdr, _ := local.discoveryLog(); hdr.NUMREC != 9 {
		t.Errorf("%d entries on a link", hdr.NUMREC)
	}
	mapped := discoveryHost(r, "[::ffff:192.0.2.7]:4422")
	if _, l := mapped.discoveryLog(); len(l) != 9 || nvme.Text(l[0].TRADDR[:]) != "192.0.2.7" {
		t.Errorf("%d entries, first at %q", len(l), nvme.Text(l[0].TRADDR[:]))
	}
}

// TestDiscoveryLogChunks: any chunking gives the same bytes; offsets outside are refused
// (CVE-2026-64320).
func TestDiscoveryLogChunks(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, AllowAnyHost: true},
		SubsystemConfig{NQN: testSub + ".other", AllowAnyHost: true})
	for i, addr := range []string{"192.0.2.1:4420", "192.0.2.1:4421", "192.0.2.1:4422"} {
		r.must(r.target.AddPort(port(uint16(i+1), nvme.TransportTCP, addr)))
	}
	h := discoveryHost(r, "192.0.2.1:4420")
	size := 10 * 1024 // three ports of three subsystems, and the header
	whole := r.ok(h.admin, logCommand(nvme.LogDiscovery, size, 0)).Data
	for off := 0; off < size; off += 1000 {
		n := min(1000, size-off)
		if got := r.ok(h.admin,
			logCommand(nvme.LogDiscovery, n,
				uint64(off))).Data; string(got) != string(whole[off:off+n]) {
			t.Errorf("chunk at %d differs", off)
		}
	}
	for _, off := range []uint64{uint64(size), uint64(size) + 4, 1 << 32, 1 << 63, 1<<64 - 4, 2} {
		r.status(h.admin, logCommand(nvme.LogDiscovery, 4, off), invalidField)
	}
	tail := r.ok(h.admin, logCommand(nvme.LogDiscovery, 4096, uint64(size)-4)).Data
	for _, b := range tail[4:] {
		if b != 0 {
			t.Fatal("bytes beyond the log")
		}
	}
}

// TestDiscoveryTransfer: a discovery controller, which anybody may have, says that its commands
// transfer little, and refuses others.
func TestDiscoveryTransfer(t *testing.T) {
	r := newHarness(t, 1)
	h := discoveryHost(r, "192.0.2.1:4420")
	id, err := nvme.Parse[nvme.IdentifyController](r.ok(h.admin,
		identifyCommand(nvme.CNSController, 0)).Data)
	if err != nil || id.MDTS != 2 {
		t.Errorf("MDTS %d, %v, want 2: 16 KiB", id.MDTS, err)
	}
	const most = 4096 << 2
	r.ok(h.admin, logCommand(nvme.LogDiscovery, most, 0))
	for _, c := range []*fabrictest.Command{
		logCommand(nvme.LogDiscovery, most+4, 0),
		logCommand(nvme.LogDiscovery, 1<<20, 0),
		logCommand(nvme.LogSupportedPages, most+4, 0),
	} {
		r.status(h.admin, c, invalidField)
	}
	r.status(h.admin, getFeatureInto(nvme.FeatureHostIdentifier, 1, make([]byte, most+4)),
		invalidLength)
}

// TestDiscoveryEvents: persistent discovery controllers are notified of changes, and GENCTR changes
// (Q09).
func TestDiscoveryEvents(t *testing.T) {
	r := newHarness(t, 1)
	r.must(r.target.AddPort(port(2, nvme.TransportTCP, "192.0.2.1:4420")))
	h := discoveryHost(r, "192.0.2.1:4420")
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventDiscoveryChanged)))
	aer := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	before, _ := h.discoveryLog()
	r.must(r.target.AddSubsystem(SubsystemConfig{NQN: testSub, AllowAnyHost: true}))
	r.w.Settle()
	if !aer.Done || aer.CQE.DW0() != 0x70F002 {
		t.Fatalf("event %v %#x, want 70f002h", aer.Done, aer.CQE.DW0())
	}
	after, list := h.discoveryLog()
	if after.GENCTR == before.GENCTR || len(list) != 2 {
		t.Errorf("GENCTR %d and %d, %d entries", before.GENCTR, after.GENCTR, len(list))
	}
	aer = r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	r.must(r.target.RemovePort(2))
	r.w.Settle()
	if hdr, _ := h.discoveryLog(); !aer.Done || hdr.NUMREC != 0 {
		t.Errorf("event %v, %d entries", aer.Done, hdr.NUMREC)
	}
	if r.target.RemovePort(2) == nil {
		t.Error("removed twice")
	}
	// I/O logs and commands are not for discovery controllers.
	r.status(h.admin, logCommand(nvme.LogSMART, 512, 0), nvme.InvalidLogPage|nvme.DNR)
	r.status(h.admin, setFeature(nvme.FeatureNumberOfQueues, 0), invalidField)
}

// TestGeneration: the generations of a target go on from a given one.
func TestGeneration(t *testing.T) {
	if n := New(Options{}).Generation(); n != 1 {
		t.Errorf("the first generation is %d", n)
	}
	target := New(Options{Generation: 41})
	before := target.Generation()
	if err := target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")); err != nil {
		t.Fatal(err)
	}
	if after := target.Generation(); before != 41 || after != 42 {
		t.Errorf("generation %d, then %d", before, after)
	}
}

// TestRemovePort: a listener that is removed leaves the discovery log, and every queue that came
// through it ends, admin, I/O, discovery, and those that have not connected yet (Q11, C10). Others
// stay. A connection that it had accepted before is refused, until there is such a listener again.
func TestRemovePort(t *testing.T) {
	r := newHarness(t, 2, ramSubsystem(t, 1))
	r.must(r.target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")))
	r.must(r.target.AddPort(port(2, nvme.TransportTCP, "192.0.2.1:4421")))
	second := info(nvme.TransportTCP)
	second.PortID = 2
	h, d, other := r.connectHost(2), discoveryHost(r, "192.0.2.1:4420"),
		r.connectHostInfo(2, second)
	idle := r.dial(1)
	r.must(r.target.RemovePort(1))
	if err := r.target.RemovePort(1); err == nil {
		t.Error("the port was removed twice")
	}
	if _, err := fabrictest.Dial(r.w.Reactors[1], r.handlers[1], h.info); err == nil {
		t.Error("a connection of the removed listener is accepted")
	}
	r.until("the controllers end", func() bool { return len(r.target.Controllers()) == 1 })
	r.w.Settle()
	for i, q := range []*fabrictest.Queue{h.admin, h.io[0], h.io[1], d.admin, idle} {
		if !q.Closed() {
			t.Errorf("queue %d is not closed", i)
		}
	}
	for _, q := range append(other.io, other.admin) {
		if q.Closed() {
			t.Error("a queue of another listener is closed")
		}
	}
	r.ok(other.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	second.PortID = 3 // of a listener that is opened just before AddPort
	r.dialInfo(0, second)
	r.must(r.target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")))
	r.connectHost(1)
}

// TestDiscoveryLogChangesWhileRead: a host that reads the log in pieces sees by GENCTR that it has
// changed in between; an offset beyond a log that has become shorter is refused (Q09).
func TestDiscoveryLogChangesWhileRead(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	r.must(r.target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")))
	h := discoveryHost(r, "192.0.2.1:4420")
	const entry = nvme.DiscoveryEntrySize
	changes := map[string]func(){
		"a listener more": func() {
			r.must(r.target.AddPort(port(3, nvme.TransportTCP,
				"192.0.2.1:4421")))
		},
		"a listener less":  func() { r.must(r.target.RemovePort(3)) },
		"a subsystem less": func() { r.removeSubsystem() },
	}
	for i, name := range []string{"a listener more", "a listener less", "a subsystem less"} {
		before, list := h.discoveryLog()
		changes[name]()
		after, now := h.discoveryLog()
		if before.GENCTR == after.GENCTR {
			t.Errorf("%s: GENCTR stays %d", name, after.GENCTR)
		}
		if want := []int{4, 2, 1}[i]; len(now) != want || int(after.NUMREC) != want {
			t.Errorf("%s: %d entries, NUMREC %d, want %d", name, len(now), after.NUMREC, want)
		}
		if last := uint64(len(list)) * entry; len(now) < len(list) { // where the last entry was
			r.status(h.admin, logCommand(nvme.LogDiscovery, entry, last), invalidField)
		}
	}
}

// TestDiscoveryTableIsContinued: a change of one subsystem costs nothing for the ports of others.
func TestDiscoveryTableIsContinued(t *testing.T) {
	r := newHarness(t, 1, SubsystemConfig{NQN: testSub, Listeners: []string{"a"}})
	p := port(1, nvme.TransportTCP, "192.0.2.1:4420")
	p.Listener = "a"
	r.must(r.target.AddPort(p))
	ports := func() *int { return &r.target.discoveryTable.Load().subs[1].ports[0] }
	before := ports()
	r.must(r.target.AddSubsystem(SubsystemConfig{NQN: testSub + "2"}))
	if ports() != before {
		t.Error("the ports of a subsystem were looked up again")
	}
	r.target.SetPortListener(1, "b", fabric.TLSOff)
	if n := len(r.target.discoveryTable.Load().subs[1].ports); n != 0 {
		t.Errorf("%d ports after they have changed", n)
	}
}
