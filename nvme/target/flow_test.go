package target

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/shares"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// testKey is the key of testHost, with an NQN that is not proven.
var testKey = shares.Key{NQN: testHost, Payer: subnet.Owner{Network: testPeer.Addr()}}

// from describes a connection from a network of its own.
func from(network int) fabric.QueueInfo {
	qi := info(nvme.TransportTCP)
	a := netip.AddrFrom4([4]byte{10, 0, byte(network >> 8), byte(network)})
	qi.Remote = netip.AddrPortFrom(a, 4420)
	return qi
}

// TestMadeUpNQNs: a peer that makes up NQNs has one share of data memory, of entries of latencies
// and of turns, and leaves others theirs. A peer that claims an NQN has another share than the host
// that proves it.
func TestMadeUpNQNs(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	h := r.raw[0]
	claim := func(nqn string, qi fabric.QueueInfo) *shares.Host {
		c := r.connectHostInfo(1, qi, func(a *connectArgs) { a.host = nqn })
		c.io[0].NoZeroCopy = true
		r.ok(c.io[0], readBlocks(8)())
		for _, t := range h.shares.Hosts {
			if t.NQN == nqn && (t.Payer.Key.Network == qi.Remote.Addr() || t.Payer.Key.Proven) {
				return t
			}
		}
		t.Fatalf("%s is not a host", nqn)
		return nil
	}
	var held []*mem.Allocation
	fill := func(s *shares.Host) (n int) {
		for {
			a := new(mem.Allocation)
			if !h.memory.Alloc(a, &s.Flows[0].Flow, 4096) {
				return n
			}
			held, n = append(held, a), n+4096
		}
	}
	var made []*shares.Host
	seen := map[*observe.Entry]bool{}
	for i := range observe.LatencyEntries {
		s := claim(fmt.Sprint("nqn.2026-11.test:", i), from(1))
		made = append(made, s)
		e := s.Flows[0].Latency
		if own := !seen[e]; own != (i <= 85) { // the last of them is that of the others
			t.Fatalf("host %d has an entry of its own: %v", i, own)
		}
		seen[e] = true
	}
	elsewhere, other := claim(made[0].NQN, from(2)), claim(testHost, from(3))
	testutil.True(t, !seen[other.Flows[0].Latency], "another network has no entry of its own")
	all := 0
	for _, s := range made {
		all += fill(s)
	}
	// Each is a flow that has little, for which a host may have twice its share.
	free := h.memory.Usage().Size - all
	testutil.True(t, all <= 4*free, "NQNs of a network have %d bytes, and %d stay free", all, free)
	testutil.True(t, elsewhere.Share == made[0].Share && elsewhere.Payer != made[0].Payer,
		"an NQN that is claimed in two networks does not count for both and for itself")
	n := fill(other)
	testutil.True(t, n >= 1<<20, "another network finds %d bytes", n)
	testutil.Equal(t, len(h.shares.Owners), observe.LatencyEntries+1+3, "owners")
	qi := from(1)
	qi.TLS = &fabric.TLS{HostNQN: testHost, SubNQN: testSub}
	if s := claim(testHost, qi); s.Payer == other.Payer || s.Share == other.Share ||
		s.Payer != s.Share || s.Admin.Network != nil ||
		len(h.shares.Hosts) != observe.LatencyEntries+3 {
		t.Errorf("the host that proves its NQN is %v", s.Key)
	}
	for _, a := range held {
		a.Free()
	}
}

// TestHosts: the queues of a host on a reactor share one count, until the last one has ended. The
// queues of hosts that are not known to be allowed share one part of the pool.
func TestHosts(t *testing.T) {
	r := newHarness(t, 1, subsystems.Config{NQN: testSub, AllowAnyHost: true})
	h := r.raw[0]
	a, b := r.connectHost(2), r.connectHost(1)
	other := r.connectHost(1, func(c *connectArgs) { c.host = testHost + "0" })
	discovery := discoveryHost(r, "192.0.2.1:4420")
	hosts := h.shares.Hosts
	testutil.True(t, len(hosts) == 2 && hosts[testKey].Sessions == 5, "%d hosts", len(hosts))
	limited := 0
	for s := range h.sessions.All() {
		if s.flow.Host == &h.strangers[1] {
			limited++
		}
	}
	testutil.True(t, limited == 1 && h.strangers[1].Limit == h.memory.Max(nil)/strangersPart,
		"%d queues of hosts that are not known", limited)
	a.hangUp()
	other.hangUp()
	discovery.hangUp()
	testutil.True(t, len(hosts) == 1 && hosts[testKey].Sessions == 2, "%d hosts are left",
		len(hosts))
	b.hangUp()
	testutil.Equal(t, len(h.shares.Hosts), 0, "hosts are left")
}

// TestHostConnectsAnew: memory that the transport has not given back yet counts for the host when
// it connects again.
func TestHostConnectsAnew(t *testing.T) {
	r := newHarness(t, 1, subsystems.Config{NQN: testSub, AllowAnyHost: true})
	h := r.raw[0]
	a := r.connectHost(1)
	host := h.shares.Hosts[testKey]
	var left mem.Allocation
	testutil.MustTrue(t, h.memory.Alloc(&left, &host.Admin, 4096), "no memory")
	a.hangUp()
	b := r.connectHost(1)
	testutil.True(t, h.shares.Hosts[testKey].Payer == host.Payer && host.Payer.Used() == 4096 &&
		h.shares.Hosts[testKey].Share == host.Share && host.Share.Used() == 4096,
		"the memory is forgotten")
	b.hangUp()
	left.Free()
	other := r.connectHost(1, func(c *connectArgs) { c.host = testHost + "0" })
	owners := h.shares.Owners
	testutil.True(t, len(owners) == 2 && owners[host.Share.Key] == nil, "%d owners are known",
		len(owners))
	other.hangUp()
}

// TestFlowOfNamespace: memory counts for the namespace of its command, even if another namespace
// had its slot before. Memory that a hanging device keeps counts for the namespace alone.
func TestFlowOfNamespace(t *testing.T) {
	dev := faultyDevice(t, 1<<20, 512)
	next := ramDeviceOpen(t, 1<<20, 512)
	closeLast(t, next)
	r := newHarness(t, 1,
		subsystems.Config{NQN: testSub, AllowAnyHost: true, Namespaces: []namespaces.Config{
			{NSID: 1, Device: dev, Timeout: time.Second},
		}})
	h := r.raw[0]
	a := r.connectHost(1)
	a.io[0].NoZeroCopy = true
	read := func() *fabrictest.Command { return rw(nvme.NVMRead, 1, 0, 16, make([]byte, 8192)) }
	r.ok(a.io[0], read())
	dev.Hold(nil)
	r.send(a.io[0], read())
	r.w.Settle()
	ch, host := h.channels[0], h.shares.Hosts[testKey]
	share := &ch.shares.Share
	if share.Used() != 8192 || host.Payer.Used() != 8192 {
		t.Errorf("%d and %d bytes", share.Used(), host.Payer.Used())
	}
	r.w.Advance(2 * time.Second) // it is given up
	if share.Used() != 8192 || host.Payer.Used() != 0 || h.memory.Usage().Orphaned != 8192 {
		t.Errorf("%d and %d bytes after the timeout", share.Used(), host.Payer.Used())
	}
	dev.Release()
	r.w.Settle()
	if share.Used() != 0 || h.memory.Usage() != (mem.PoolUsage{Size: h.memory.Usage().Size}) {
		t.Errorf("%d bytes stay", share.Used())
	}
	r.removeNamespace(1)
	r.must(r.target.AddNamespace(testSub, namespaces.Config{NSID: 1, Device: next}))
	r.ok(a.io[0], read())
	testutil.True(t, h.channels[0] != ch && host.Flows[0].Namespace == &h.channels[0].shares.Share,
		"the flow is that of the removed namespace")
}

// oneBlock is a device that nothing uses.
type oneBlock struct{ backend.Device }

func (oneBlock) Info() backend.Info { return backend.Info{Size: 512, BlockSize: 512} }

// channelOf makes a channel to a namespace that is not in the table.
func channelOf(r *harness, slot int) *channel {
	sub := r.target.find(testSub)
	ns := &namespaces.Namespace{Owner: sub, Slot: slot}
	c := namespaces.Config{NSID: uint32(slot + 1), Device: oneBlock{}}
	r.must(ns.Init(testSub, c, &r.target.common, sub.teller(ns)))
	return &channel{h: r.raw[0], ns: ns, shares: shares.Channel{Namespace: ns}}
}
