package target

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
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
