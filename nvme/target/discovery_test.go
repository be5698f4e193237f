package target

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

func port(id uint16, tr nvme.TransportType, addr string) discovery.Port {
	return discovery.Port{
		ID: id, Addr: fabric.Addr{Transport: tr, AddrPort: netip.MustParseAddrPort(addr)},
	}
}

func (h *host) discoveryLog() (*nvme.DiscoveryHeader, []*nvme.DiscoveryEntry) {
	h.r.t.Helper()
	hdr, err := targettest.ParseDiscoveryHeader(h.r.ok(h.admin,
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

// TestGeneration: the generations of a target go on from a given one.
func TestGeneration(t *testing.T) {
	testutil.Equal(t, New(Options{}).Generation(), 1, "the first generation")
	target := New(Options{Generation: 41})
	before := target.Generation()
	testutil.Must(t, target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")))
	after := target.Generation()
	testutil.True(t, before == 41 && after == 42, "generation %d, then %d", before, after)
}

// TestGateways: the log lists the ports of other gateways for the subsystems that they serve, each
// entry also when it is read alone. Hosts are told of changes there, and the generation is never
// below one that another gateway may have shown.
func TestGateways(t *testing.T) {
	r := newHarness(t, 1,
		subsystems.Config{NQN: testSub + "a", AllowAnyHost: true},
		subsystems.Config{NQN: testSub + "b", Hosts: []string{otherHost}},
		subsystems.Config{NQN: testSub + "c", AllowAnyHost: true, Listeners: []string{"1"}},
		subsystems.Config{NQN: testSub + "d", AllowAnyHost: true})
	own := port(1, nvme.TransportTCP, "192.0.2.1:4420")
	own.Listener = "1"
	r.must(r.target.AddPort(own))
	h := discoveryHost(r, "192.0.2.1:4420")
	want := func(names ...string) uint64 {
		t.Helper()
		head, list := h.discoveryLog()
		var got []string
		for i, e := range list {
			nqn, err := nvme.ParseNQN(&e.SUBNQN)
			r.must(err)
			alone := r.ok(h.admin, logCommand(nvme.LogDiscovery, 1024, uint64(i+1)*1024)).Data
			one := testutil.Value(nvme.Parse[nvme.DiscoveryEntry](alone))(t)
			testutil.Equal(t, *one, *e, "entry %d", i)
			if nqn != nvme.DiscoveryNQN {
				addr := string(bytes.TrimRight(e.TRADDR[:], " \x00"))
				got = append(got, strings.TrimPrefix(nqn, testSub)+" "+addr)
			}
		}
		testutil.Equal(t, fmt.Sprint(got), fmt.Sprint(names), "the entries")
		return head.GENCTR
	}
	all := []string{"a 192.0.2.1", "c 192.0.2.1", "d 192.0.2.1"}
	before := want(all...)
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventDiscoveryChanged)))
	set := func(generation uint64, told bool, ports ...discovery.Remote) {
		t.Helper()
		event := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
		r.target.SetGateways(ports, generation)
		r.settle()
		testutil.Equal(t, event.Done, told, "the host is told")
		if !told {
			head, _ := h.discoveryLog()
			testutil.Equal(t, head.GENCTR, generation, "the generation of the same log")
			r.target.SetGateways(nil, 0) // and then it is
			r.until("the request ends", func() bool { return event.Done })
		}
	}
	remote := func(addr, listener string, nqns ...string) discovery.Remote {
		p := discovery.Remote{
			Port: port(1, nvme.TransportTCP, addr+":4420"), Subsystems: map[string]bool{},
		}
		for _, nqn := range nqns {
			p.Subsystems[testSub+nqn] = true
		}
		p.Listener = listener
		return p
	}
	two := remote("192.0.2.2", "", "a", "b", "c")
	set(0, true, two)
	after := want("a 192.0.2.1", "a 192.0.2.2", "c 192.0.2.1", "d 192.0.2.1")
	testutil.True(t, after > before, "generation %d after %d", after, before)
	local := logCommand(nvme.LogDiscovery, 1024, 0)
	local.SQE.GetLog().Set(nvme.LogDiscovery, 1024, 0, nvme.DiscoveryLocal, false)
	head := testutil.Value(targettest.ParseDiscoveryHeader(r.ok(h.admin, local).Data))(t)
	testutil.Equal(t, head.NUMREC, 4, "entries of the port alone")
	set(1000, false, two)
	testutil.Equal(t, want(all...), 1001, "the generation after that of another gateway")
	set(7, true, remote("192.0.2.2", "1", "c", "d"), remote("127.0.0.1", "1", "c"))
	testutil.Equal(t, want("a 192.0.2.1", "c 192.0.2.1", "c 192.0.2.2", "d 192.0.2.1",
		"d 192.0.2.2"), 1002, "the generation after an older one")
}

// TestRemovePort: a removed listener leaves the discovery log. Every queue that came through it
// ends: admin, I/O and discovery queues, and queues without a Connect command (Q11, C10). Others
// stay. A connection that it had accepted before is refused, until such a listener exists again.
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
	testutil.True(t, r.target.RemovePort(1) != nil, "the port was removed twice")
	testutil.True(t, testutil.Err(fabrictest.Dial(r.w.Reactors[1], r.handlers[1], h.info)) != nil,
		"a connection of the removed listener is accepted")
	r.until("the controllers end", func() bool { return len(r.target.Controllers()) == 1 })
	r.w.Settle()
	for i, q := range []*fabrictest.Queue{h.admin, h.io[0], h.io[1], d.admin, idle} {
		testutil.True(t, q.Closed(), "queue %d is not closed", i)
	}
	for _, q := range append(other.io, other.admin) {
		testutil.True(t, !q.Closed(), "a queue of another listener is closed")
	}
	r.ok(other.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
	second.PortID = 3 // of a listener that is opened just before AddPort
	r.dialInfo(0, second)
	r.must(r.target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")))
	r.connectHost(1)
}

// TestDiscoveryLogsAreKept: logs that a host requests by turns are not made again each time. No
// reactor makes them, since that takes time for each subsystem at each port.
func TestDiscoveryLogsAreKept(t *testing.T) {
	r := newHarness(t, 1, subsystems.Config{NQN: testSub, AllowAnyHost: true})
	r.must(r.target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")))
	h := discoveryHost(r, "192.0.2.1:4420")
	local := logCommand(nvme.LogDiscovery, 1024, 0)
	local.SQE.GetLog().Set(nvme.LogDiscovery, 1024, 0, nvme.DiscoveryLocal, false)
	logs := func(kept bool) any { // of this host
		h.discoveryLog()
		r.send(h.admin, local)
		testutil.True(t, local.Done == kept, "the log is read at once: %t", local.Done)
		r.until("the log is read", func() bool { return local.Done })
		return r.target.discovery.lookup(h.cntlid).DiscoveryLogs
	}
	testutil.True(t, logs(false) == logs(true), "the logs were made again")
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventDiscoveryChanged)))
	release := r.occupy(true)
	event := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	r.must(r.target.AddPort(port(2, nvme.TransportTCP, "192.0.2.1:4421")))
	r.w.Settle()
	testutil.True(t, !event.Done, "a reactor has compared the logs")
	release()
	r.settle()
	testutil.True(t, event.Done, "no event")
}

// TestDiscoveryChangesBetweenPages: a host that reads a log in parts, and the header first and
// last, has parts of one log if GENCTR is the same. The log changes meanwhile, and changes back.
func TestDiscoveryChangesBetweenPages(t *testing.T) {
	r := newHarness(t, 1, subsystems.Config{NQN: testSub, AllowAnyHost: true})
	r.must(r.target.AddPort(port(1, nvme.TransportTCP, "192.0.2.1:4420")))
	h := discoveryHost(r, "192.0.2.1:4420")
	add := func() { r.must(r.target.AddPort(port(2, nvme.TransportTCP, "192.0.2.1:4421"))) }
	remove := func() { r.must(r.target.RemovePort(2)) }
	change, back := add, remove
	header := func() *nvme.DiscoveryHeader {
		b := r.ok(h.admin, logCommand(nvme.LogDiscovery, 20, 0)).Data
		return testutil.Value(targettest.ParseDiscoveryHeader(b))(t)
	}
	for _, late := range []bool{false, true} { // the part is made before the log changes back
		for range 2 {
			before := header()
			off := nvme.DiscoveryHeaderSize * before.NUMREC
			c := logCommand(nvme.LogDiscovery, nvme.DiscoveryEntrySize, off)
			last := r.ok(h.admin, c).Data
			change()
			var part []byte
			if late {
				page, _ := r.target.discovery.Lookup(h.cntlid).GetLog(&c.SQE)
				page.Work()
				back()
				header()
				part = page.Build().Data
			} else {
				part = r.ok(h.admin, c).Data
				back()
			}
			after := header()
			testutil.True(t, after.GENCTR != before.GENCTR || bytes.Equal(part, last),
				"late %t: generation %d with a part of another log", late, after.GENCTR)
			change()
			change, back = back, change
		}
	}
}

// TestDiscoveryLogIsExact: a host is told of the subsystems that it can connect to through the port
// that it asks, at all ports where it can, and of no port where it finds nothing else.
func TestDiscoveryLogIsExact(t *testing.T) {
	subs := []subsystems.Config{
		{NQN: testSub + "a", Hosts: []string{testHost}, Listeners: []string{"1", "2"}},
		{NQN: testSub + "b", Hosts: []string{otherHost}, Listeners: []string{"1", "3"}},
		{NQN: testSub + "c", AllowAnyHost: true, Listeners: []string{"2"}},
		{NQN: testSub + "d"},
	}
	r := newHarness(t, 1, subs...)
	const ports = 4
	for id := range uint16(ports) {
		p := port(id+1, nvme.TransportTCP, "192.0.2.1:4420")
		p.Listener = fmt.Sprint(p.ID)
		r.must(r.target.AddPort(p))
	}
	connects := func(port uint16, nqn string) bool {
		qi := info(nvme.TransportTCP)
		qi.PortID = port
		q := r.dialInfo(0, qi)
		c := r.do(q, adminArgs(nqn).command())
		q.HangUp()
		r.w.Settle()
		return c.CQE.Status().OK()
	}
	for asked := uint16(1); asked <= ports; asked++ {
		_, list := through(r, asked, nvme.DiscoveryNQN).discoveryLog()
		shown, self, found := map[string]bool{}, map[uint16]bool{}, map[uint16]bool{asked: true}
		for _, e := range list {
			nqn, err := nvme.ParseNQN(&e.SUBNQN)
			r.must(err)
			if nqn != nvme.DiscoveryNQN {
				shown[fmt.Sprint(nqn, e.PORTID)], found[e.PORTID] = true, true
				continue
			}
			self[e.PORTID] = true
			// The first two list each other, and only the second one has c.
			testutil.True(t, (e.EFLAGS&nvme.EFLAGSDuplicate != 0) == (asked > 2),
				"asked through %d: flags %#x", asked, e.EFLAGS)
		}
		for _, s := range subs {
			for p := uint16(1); p <= ports; p++ {
				want := connects(asked, s.NQN) && connects(p, s.NQN)
				testutil.True(t, shown[fmt.Sprint(s.NQN, p)] == want,
					"asked through %d, %s at %d is shown: %v", asked, s.NQN, p, !want)
			}
		}
		testutil.True(t, maps.Equal(self, found),
			"asked through %d, the service is shown at %v, and others at %v", asked, self, found)
	}
}

// TestHiddenNamespace: to a host, a subsystem with namespaces of other hosts looks exactly like one
// without them. This holds for the data of Identify and log pages, and the status of features and
// I/O commands, for each class of NSID.
func TestHiddenNamespace(t *testing.T) {
	namespace := func(nsid uint32, hosts ...string) namespaces.Config {
		return namespaces.Config{
			NSID: nsid, Device: ramDevice(t, 1<<20, 512), UUID: uuid.UUID{byte(nsid)}, Hosts: hosts,
		}
	}
	r := newHarness(t, 2, subsystems.Config{
		NQN: testSub, AllowAnyHost: true, Serial: "S", CNTLIDMin: 1, CNTLIDMax: 1,
		Namespaces: []namespaces.Config{
			namespace(1), namespace(2, otherHost), namespace(3, otherHost, testHost),
			namespace(4, otherHost),
		},
	}, subsystems.Config{
		NQN: testSub + "2", AllowAnyHost: true, Serial: "S", CNTLIDMin: 1, CNTLIDMax: 1,
		Namespaces: []namespaces.Config{namespace(1), namespace(3)},
	})
	h := r.connectHost(1)
	w := r.connectHost(1, func(a *connectArgs) { a.sub += "2" })
	same := func(what string, a, b int, with func() *fabrictest.Command, io bool) {
		t.Helper()
		first, second := with(), with()
		on, off := h.admin, w.admin
		if io {
			on, off = h.io[0], w.io[0]
		}
		r.do(on, first)
		r.do(off, second)
		testutil.True(t, first.CQE.Status() == second.CQE.Status(),
			"%s %#x of %d: %v, and %v where the namespace does not exist", what, a, b,
			first.CQE.Status(), second.CQE.Status())
		if what == "identify" && a == int(nvme.CNSController) {
			clear(first.Data[768:1024]) // SUBNQN
			clear(second.Data[768:1024])
		}
		data := what == "identify" || what == "log" && nvme.LID(a) != nvme.LogTelemetryHost &&
			nvme.LID(a) != nvme.LogError // which has command identifiers
		testutil.True(t, !data || bytes.Equal(first.Data, second.Data), "%s %#x of %d differs",
			what, a, b)
	}
	c := r.target.find(testSub).lookup(1)
	for _, nsid := range []uint32{0, 1, 2, 3, 5, nvme.NSIDAll} {
		for i := range 256 {
			if c.IdentifyPage(nvme.CNS(i)) != nil {
				same("identify", i, int(nsid), func() *fabrictest.Command {
					return identifyCommand(nvme.CNS(i), nsid)
				}, false)
			}
			if c.LogPage(nvme.LID(i)) != nil {
				same("log", i, int(nsid), func() *fabrictest.Command {
					c := logCommand(nvme.LID(i), 512, 0)
					c.SQE.SetNSID(nsid)
					return c
				}, false)
			}
			if c.Feature(nvme.FID(i)) != nil {
				same("feature", i, int(nsid), func() *fabrictest.Command {
					c := getFeature(nvme.FID(i), 0, 0)
					c.SQE.SetNSID(nsid)
					return c
				}, false)
			}
			if ioOps[i].execute != nil {
				same("command", i, int(nsid), func() *fabrictest.Command {
					return rw(nvme.Opcode(i), nsid, 0, 1, make([]byte, 512))
				}, true)
			}
		}
	}
	r.enableCopy(h)
	r.status(h.io[0], copyTo(8, nvme.CopyNamespaces, source{nsid: 2, blocks: 1}), inactiveNamespace)
}

// TestHiddenBeforeItIsOpened: the same for a command that gets to a namespace only after the
// change, on a reactor that has not used it before.
func TestHiddenBeforeItIsOpened(t *testing.T) {
	const last = uint32(compoundWidth + 1)
	sub := subsystems.Config{NQN: testSub, AllowAnyHost: true}
	var devs []*backendtest.Faulty
	for nsid := uint32(1); nsid < last; nsid++ {
		dev := faultyDevice(t, 1<<20, 512)
		dev.Hold(nil)
		devs = append(devs, dev)
		sub.Namespaces = append(sub.Namespaces, namespaces.Config{NSID: nsid, Device: dev})
	}
	hidden := &recorder{Device: ramDevice(t, 1<<20, 512), info: func(*backend.Info) {}}
	sub.Namespaces = append(sub.Namespaces, namespaces.Config{NSID: last, Device: hidden})
	r, h := joined(t, 1, 1, sub)
	flush := r.send(h.io[0], command(nvme.NVMFlush, nvme.NSIDAll, nil))
	for _, dev := range devs {
		r.until("the device has a flush", func() bool { return dev.Held() == 1 })
	}
	cfg := namespaces.Config{NSID: last, Hosts: []string{otherHost}}
	r.during(func() error { return r.target.UpdateNamespace(testSub, cfg, nil) })
	for _, dev := range devs {
		dev.Release()
	}
	r.until("the command completes", func() bool { return flush.Done })
	ios := hidden.take()
	testutil.True(t, len(ios) == 0, "the device has got %+v", ios)
}

type states = map[uint32]nvme.ANAState

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
	c := anaCommand(0, int(ana.LogSize(namespaces.MaxNSID)), rgo)
	l, groups, err := targettest.ParseANALog(h.r.ok(h.admin, c).Data)
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

// anaStatuses are the statuses of commands that a state does not allow (Base section 4.2.3.4).
var anaStatuses = map[nvme.ANAState]nvme.Status{
	nvme.ANAStateInaccessible: nvme.ANAInaccessible, nvme.ANAStateChange: nvme.ANATransition,
	nvme.ANAStatePersistentLoss: nvme.ANAPersistentLoss,
}

// TestFeatureOfVanishingNamespace: a namespace may become inactive while a command is prepared.
func TestFeatureOfVanishingNamespace(t *testing.T) {
	r, h := joined(t, 1, 0, ramSubsystem(t, 1))
	r.must(r.target.SetANAStates(1, states{7: nvme.ANAStateNonOptimized}))
	sub := r.target.find(testSub)
	c := sub.lookup(h.cntlid)
	sqe := getFeature(nvme.FeatureErrorRecovery, nvme.FeatureCurrent, 0).SQE
	sqe.SetNSID(1)
	before := sub.Namespaces.Load().List
	done := make(chan struct{})
	defer func() { <-done }()
	go func() {
		defer close(done)
		for range 200_000 {
			sub.Namespaces.Store(nil)
			sub.Namespaces.Store(before)
		}
	}()
	for !closed(done) {
		c.Check(&sqe, 0)
	}
}

// TestANAEventOfManyNamespaces: the ANA log is made again once for all namespaces that are added
// together, because that takes longer the more there are.
func TestANAEventOfManyNamespaces(t *testing.T) {
	r, h := joined(t, 1, 0, ramSubsystem(t, 1))
	r.ok(h.admin, setFeature(nvme.FeatureAsyncEventConfig, uint32(nvme.EventANAChanged)))
	event := r.send(h.admin, command(nvme.AdminAsyncEventReq, 0, nil))
	h.anaLog(false)
	c := r.target.find(testSub).lookup(h.cntlid)
	before := c.ANALog.Changes()
	for nsid := range uint32(3) {
		cfg := namespaces.Config{NSID: 10 + nsid, Device: ramDevice(t, 1<<20, 512)}
		r.must(r.target.AddNamespace(testSub, cfg))
		c.Notice(namespaces.Changed, cfg.NSID)
	}
	testutil.True(t, c.ANALog.Changes() == before, "the log is made again for each namespace")
	r.w.Settle()
	testutil.True(t, event.Done, "no event")
	h.wantANA(2, anaGroup(1, nvme.ANAStateOptimized, 2, 1, 10, 11, 12))
}
