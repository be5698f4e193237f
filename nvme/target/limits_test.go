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
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/shares"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// load sends the same kind of command again and again.
type load struct{ done, failed, depth int }

// start keeps depth commands of new outstanding on a queue.
func (l *load) start(r *harness, q *fabrictest.Queue, depth int, make func() *fabrictest.Command) {
	l.depth = depth
	r.ok(q, command(nvme.NVMFlush, 1, nil)) // opens the channel
	for range depth {
		c := make()
		c.Then = func() {
			if l.done++; !c.CQE.Status().OK() {
				l.failed++
			}
			if l.depth > 0 {
				c.Reset()
				r.must(q.Send(c))
			}
		}
		r.must(q.Send(c))
	}
}

func readBlocks(n uint32) func() *fabrictest.Command {
	return func() *fabrictest.Command { return rw(nvme.NVMRead, 1, 0, n, make([]byte, n*512)) }
}

func expect(t *testing.T, what string, got int, want, tolerance float64) {
	t.Helper()
	if f := float64(got); f < want*(1-tolerance)-1 || f > want*(1+tolerance)+1 {
		t.Errorf("%s: %d, want %.0f within %.0f %%", what, got, want, 100*tolerance)
	}
}

// TestLimits: each limit holds within 3 %, on one reactor and on four.
func TestLimits(t *testing.T) {
	t.Parallel() // it computes
	for _, tc := range []struct {
		name   string
		limits qos.Limits
		blocks uint32
		want   float64       // commands per second
		over   time.Duration // 10 s with make soak
	}{
		{"1 IOPS", qos.Limits{IOPS: 1}, 8, 1, 10 * time.Second},
		{"777 IOPS", qos.Limits{IOPS: 777}, 1, 777, 2 * time.Second},
		{"20000 IOPS", qos.Limits{IOPS: 20_000}, 1, 20_000, 100 * time.Millisecond},
		{"1 MiB/s", qos.Limits{Bandwidth: 1 << 20}, 64, 32, 5 * time.Second},
		{"both", qos.Limits{IOPS: 500, Bandwidth: 1 << 20}, 8, 256, 2 * time.Second},
	} {
		for _, object := range []string{"host", "subsystem", "namespace"} {
			for _, reactors := range []int{1, 4} {
				if reactors == 1 && object != "subsystem" {
					continue // the objects differ in how reactors share a limit
				}
				t.Run(fmt.Sprintf("%s/%s/%d", tc.name, object, reactors), func(t *testing.T) {
					sub := ramSubsystem(t, 1)
					switch object {
					case "subsystem":
						sub.Limits = tc.limits
					case "namespace":
						sub.Namespaces[0].Limits = tc.limits
					}
					over := tc.over
					if testutil.Soaking() {
						over = 10 * time.Second
					}
					r := newHarness(t, reactors, sub)
					if object == "host" {
						r.target.SetHostLimits(testHost, tc.limits)
					}
					h := r.connectHost(reactors)
					var l load
					for _, q := range h.io {
						l.start(r, q, 16, readBlocks(tc.blocks))
					}
					r.w.Advance(min(over, time.Second)) // past the burst
					before := l.done
					r.w.Advance(over)
					expect(t, "commands", l.done-before, over.Seconds()*tc.want, 0.03)
					testutil.True(t, l.failed <= 0, "%d failed", l.failed)
					l.depth = 0
					i := r.target.Limits()
					testutil.True(t, len(i) == 1 && i[0].IOPS == tc.limits.IOPS &&
						i[0].Bandwidth == tc.limits.Bandwidth &&
						i[0].BurstSeconds == tc.limits.Burst.Seconds() && i[0].Waits != 0 &&
						i[0].WaitSeconds != 0, "%+v", i)
				})
			}
		}
	}
}

// TestLimitIsShared: two hosts that reach a limit get half of it each, for any number of queues. If
// one wants less, the other gets the rest.
func TestLimitIsShared(t *testing.T) {
	sub := ramSubsystem(t, 1)
	sub.Limits = qos.Limits{IOPS: 1000}
	r, many := joined(t, 4, 4, sub)
	one := r.connectOther()
	var a, b load
	for _, q := range many.io {
		a.start(r, q, 32, readBlocks(1))
	}
	b.start(r, one.io[0], 32, readBlocks(1))
	r.w.Advance(4 * time.Second)
	expect(t, "host with four queues", a.done, 2000, 0.05)
	expect(t, "host with one queue", b.done, 2000, 0.05)
	a.depth = 0
	r.w.Advance(time.Second)
	before := b.done
	r.w.Advance(2 * time.Second)
	expect(t, "the other one alone", b.done-before, 2000, 0.03)
	b.depth = 0
}

// TestWaitsWithNothing: commands that wait at a limit have no memory of the pool or of the
// namespace, except for in-capsule data, and no IO at the device. They are not given up. Flush and
// commands for other namespaces go on.
func TestWaitsWithNothing(t *testing.T) {
	sub := ramSubsystem(t, 2)
	sub.Namespaces[0].Limits = qos.Limits{IOPS: 1}
	sub.Namespaces[0].Timeout = time.Second
	r, h := joined(t, 1, 2, sub)
	h.io[1].NoZeroCopy = true
	var all []*fabrictest.Command
	send := func(c *fabrictest.Command) {
		r.send(h.io[len(all)%2], c)
		all = append(all, c)
	}
	r.ok(h.io[0], readBlocks(8)()) // the debt
	for range 2 {
		for range 2 {
			send(readBlocks(8)())
			send(rw(nvme.NVMWrite, 1, 0, 8, make([]byte, 4096)))
			send(rw(nvme.NVMWriteZeroes, 1, 0, 8, nil))
			c := rw(nvme.NVMWrite, 1, 0, 8, make([]byte, 4096))
			c.InCapsule = true
			send(c)
		}
		send(dsm(1, true, [2]uint64{0, 8}))
	}
	r.w.Advance(800 * time.Millisecond)
	ch := r.raw[0].channels[0]
	n := r.w.Reactors[0].Memory().Usage().Used
	testutil.True(t, n == 0, "what waits has %d bytes", n)
	testutil.Equal(t, ch.State().Busy, dispatch.State{}.Busy, "what waits")
	r.ok(h.io[0], command(nvme.NVMFlush, 1, nil))
	r.ok(h.io[0], rw(nvme.NVMRead, 2, 0, 8, make([]byte, 4096)))
	for i := range all {
		r.w.Advance(time.Second)
		for j, c := range all {
			testutil.MustEqual(t, c.Done, (j <= i), "after %d seconds, command %d is done", i+1, j)
		}
	}
	for i, c := range all {
		testutil.Equal(t, c.CQE.Status(), nvme.Success, "command %d", i)
	}
}

func (r *harness) allDone(all []*fabrictest.Command, want nvme.Status) {
	r.t.Helper()
	for i, c := range all {
		r.until(fmt.Sprintf("command %d completes", i), func() bool { return c.Done })
		testutil.Equal(r.t, c.CQE.Status()&^nvme.More, want, "command %d", i)
	}
}

// TestChangeLimits: limits change while commands wait at them.
func TestChangeLimits(t *testing.T) {
	t.Parallel() // it computes
	sub := ramSubsystem(t, 1)
	r := newHarness(t, 2, sub)
	set := func(object string, l qos.Limits) {
		switch object {
		case "host":
			r.target.SetHostLimits(testHost, l)
		case "subsystem":
			_, err := r.target.UpdateSubsystem(
				subsystems.Config{NQN: testSub, AllowAnyHost: true, Limits: l})
			r.must(err)
		default:
			r.during(func() error {
				return r.target.UpdateNamespace(testSub, namespaces.Config{NSID: 1, Limits: l}, nil)
			})
		}
		r.w.Settle()
	}
	h := r.connectHost(2)
	var l load
	for _, object := range []string{"host", "subsystem", "namespace"} {
		r.run(object, func(t *testing.T) {
			set(object, qos.Limits{IOPS: 500})
			for _, q := range h.io {
				l.start(r, q, 16, readBlocks(1))
			}
			for _, rate := range []int64{100, 1000, 10, 300} {
				set(object, qos.Limits{IOPS: rate})
				r.w.Advance(2 * time.Second)
				before, over := l.done, max(1, min(5, 1000/rate)) // seconds
				r.w.Advance(time.Duration(over) * time.Second)
				expect(t, fmt.Sprint(rate), l.done-before, float64(over*rate), 0.03)
			}
			set(object, qos.Limits{IOPS: 1})
			r.w.Advance(time.Second)
			l.depth = 0
			set(object, qos.Limits{})
			for _, h := range r.raw {
				testutil.True(t, h.gate.Idle(), "commands wait without a limit")
			}
		})
	}
	n := len(r.target.Limits())
	testutil.True(t, n == 0 && l.failed == 0, "%d limits, %d commands failed", n, l.failed)
}

// TestLimitsForget: the buckets of a limit know the hosts that use it, and hosts that nobody limits
// have nothing.
func TestLimitsForget(t *testing.T) {
	sub := ramSubsystem(t, 1)
	r := newHarness(t, 1, sub)
	r.target.SetHostLimits(otherHost, qos.Limits{IOPS: 1000})
	h := r.connectHost(1)
	r.ok(h.io[0], readBlocks(8)())
	testutil.True(t, !r.raw[0].shares.Hosts[testKey].Flows[0].Limits.Limited(),
		"a host without limits has some")
	o := r.connectOther()
	r.ok(o.io[0], readBlocks(8)())
	limiter := r.target.shared.Hosts.Limiter(otherHost)
	testutil.Equal(t, limiter.Users(), 1, "users")
	o.hangUp()
	testutil.Equal(t, limiter.Users(), 0, "users after the host has left")
}

// TestSeveralLimits: commands that wait at the limit of a namespace, in any number, leave the rest
// of the limit of the subsystem to others.
func TestSeveralLimits(t *testing.T) {
	t.Parallel() // it computes
	for _, tc := range []struct {
		all, slow qos.Limits
		seconds   float64
		want      [2]float64 // commands per second
	}{
		{qos.Limits{IOPS: 200}, qos.Limits{IOPS: 4}, 10, [2]float64{4, 196}},
		{
			qos.Limits{IOPS: 1000, Burst: qos.MinBurst},
			qos.Limits{IOPS: 300},
			2,
			[2]float64{300, 700},
		},
		{qos.Limits{Bandwidth: 1 << 20}, qos.Limits{Bandwidth: 32 << 10}, 5, [2]float64{8, 248}},
	} {
		sub := ramSubsystem(t, 2)
		sub.Limits, sub.Namespaces[0].Limits = tc.all, tc.slow
		r := newHarness(t, 4, sub)
		var slow, other load
		for i := range 8 {
			h := r.connectHost(4, func(c *connectArgs) { c.host = fmt.Sprint(testHost, i) })
			for _, q := range h.io {
				slow.start(r, q, 4, readBlocks(8))
			}
		}
		h := r.connectHost(1)
		r.ok(h.io[0], command(nvme.NVMFlush, 2, nil)) // opens the channel
		other.start(r, h.io[0], 16, func() *fabrictest.Command {
			return rw(nvme.NVMRead, 2, 0, 8, make([]byte, 8*512))
		})
		r.w.Advance(2 * time.Second)
		slow.done, other.done = 0, 0
		r.w.Advance(time.Duration(tc.seconds) * time.Second)
		expect(t, "at the limit of the namespace", slow.done, tc.seconds*tc.want[0], 0.03)
		expect(t, "at that of the subsystem", other.done, tc.seconds*tc.want[1], 0.03)
		slow.depth, other.depth = 0, 0
	}
}

// TestCopyAtLimit: limits count the bytes that Compare, Verify and Copy read and write.
func TestCopyAtLimit(t *testing.T) {
	const blocks = 2048 // 1 MiB
	for name, tc := range map[string]struct {
		make func() *fabrictest.Command
		want float64 // seconds of each
	}{
		"verify": {func() *fabrictest.Command { return rw(nvme.NVMVerify, 1, 0, blocks, nil) }, 1},
		"compare": {func() *fabrictest.Command {
			return rw(nvme.NVMCompare, 1, 0, 256, make([]byte, 256*512))
		}, 1. / 8},
		"copy": {func() *fabrictest.Command {
			return copyTo(blocks, nvme.CopyRanges, source{1, 0, blocks})
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			sub := copySubsystem(t)
			sub.Namespaces[0].Limits = qos.Limits{Bandwidth: 1 << 20}
			r, h := joined(t, 1, 1, sub)
			var l load
			l.start(r, h.io[0], 4, tc.make)
			r.w.Advance(10 * time.Second)
			before := l.done
			r.w.Advance(100 * time.Second)
			expect(t, "commands in 100 s", l.done-before, 100/tc.want, 0.03)
			testutil.True(t, l.failed <= 0, "%d failed", l.failed)
			l.depth = 0
		})
	}
}

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

// TestHostReconnects: memory that the transport has not given back yet counts for the host when
// it connects again.
func TestHostReconnects(t *testing.T) {
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
	testutil.True(t, share.Used() == 8192 && host.Payer.Used() == 8192, "%d and %d bytes",
		share.Used(), host.Payer.Used())
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
