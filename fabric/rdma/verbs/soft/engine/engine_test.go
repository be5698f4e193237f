package engine

import (
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

// TestCombining kicks endpoints from many goroutines, calls closures and runs turns: each endpoint
// sees all work that was published before its last Kick, and one goroutine at a time is inside.
func TestCombining(t *testing.T) {
	d := alone(t, Options{})
	e := d.Engine(0)
	const workers, shared, rounds = 8, 3, 3000
	var (
		posted [workers + shared]atomic.Int64
		seen   [workers + shared]int64
		calls  int
		inside atomic.Int32
	)
	var eps [workers + shared]*endpoint
	for i := range eps {
		eps[i] = attach(t, e, &endpoint{onRun: func(*endpoint) bool {
			testutil.True(t, inside.Add(1) == 1, "two goroutines hold the engine")
			seen[i] = posted[i].Load()
			inside.Add(-1)
			return false
		}})
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for r := range rounds {
				for _, i := range []int{w, workers + r%shared} {
					posted[i].Add(1)
					eps[i].Kick()
				}
				switch r % 16 {
				case 0:
					e.Do(func() { calls++ })
				case 1:
					e.Step()
				}
			}
		})
	}
	wg.Wait()
	held(e, func() {})
	e.Do(func() {
		for i := range seen {
			testutil.Equal(t, seen[i], posted[i].Load(), "endpoint %d: work seen", i)
		}
		testutil.Equal(t, calls, workers*((rounds+15)/16), "closures")
	})
}

// TestManyCalls: a turn runs a bounded number of closures.
func TestManyCalls(t *testing.T) {
	d := alone(t, Options{})
	e := d.Engine(0)
	const n = maxTurns * maxCalls
	var calls [n]call
	inTurn, most, ran := 0, 0, 0
	ep := attach(t, e, &endpoint{onRun: func(*endpoint) bool { inTurn = 0; return true }})
	for i := range calls {
		calls[i].done = make(chan struct{})
		calls[i].fn = func() {
			inTurn++
			ran++
			most = max(most, inTurn)
		}
		e.calls.Push(&calls[i], &calls[i].node)
	}
	ep.Kick()
	testutil.Equal(t, ran, n, "closures")
	testutil.Equal(t, most, maxCalls, "closures in a turn")
}

// TestHelper shows that a goroutine does not work for others without end: here the endpoint is
// kicked again whenever it runs. After some turns a helper goroutine takes over.
func TestHelper(t *testing.T) {
	d := alone(t, Options{})
	gate, done := make(chan struct{}), make(chan struct{})
	ep := attach(t, d.Engine(0), &endpoint{onRun: func(ep *endpoint) bool {
		switch ep.runs {
		case maxTurns + 1:
			<-gate // not the goroutine of the test, which opens the gate
		case 1000:
			close(done)
			return false
		}
		ep.Kick()
		return false
	}})
	ep.Kick()
	close(gate)
	testutil.Receive(t, "the last run", done)
	held(d.Engine(0), func() { testutil.Equal(t, ep.runs, 1000, "runs") })

	var runs atomic.Int64
	again := attach(t, d.Engine(0), &endpoint{onRun: func(ep *endpoint) bool {
		if runs.Add(-1) > 0 {
			ep.Kick()
		}
		return false
	}})
	testutil.Equal(t, testutil.AllocsPerRun(20, func() {
		runs.Store(10 * maxTurns)
		again.Kick()
		for runs.Load() > 0 {
			runtime.Gosched()
		}
	}), 0, "allocations")
}

// wakes is the first socket of a network, and counts the calls of Wake.
type wakes struct {
	wire.Network
	wire.Conn
	n atomic.Int32
}

func (w *wakes) Wake() { w.n.Add(1); w.Conn.Wake() }

func (w *wakes) Open(n int) ([]wire.Conn, error) {
	conns, err := w.Network.Open(n)
	w.Conn, conns[0] = conns[0], w
	return conns, err
}

// TestCloseBesideHelper: Close wakes the goroutine that waits for the socket after the helper has
// ended, because a turn of the helper takes the wake away.
func TestCloseBesideHelper(t *testing.T) {
	net := wiretest.New(wiretest.Options{Manual: true})
	c := &wakes{Network: net.Host("a", addrA)}
	d := testutil.Value(New(c, Options{Background: true}))(t)
	e := d.Engine(0)
	gate := make(chan struct{})
	ep := &endpoint{}
	ep.onRun = func(*endpoint) bool {
		if ep.runs > maxTurns { // this is the helper
			close(gate)
			before := c.n.Load()
			for !d.stopping.Load() {
				runtime.Gosched()
			}
			for range 1000 { // Close does not wait for ever
				runtime.Gosched()
			}
			testutil.Equal(t, c.n.Load(), before, "wakes during a turn of the helper")
			e.Detach(ep.num)
			return false
		}
		ep.Kick()
		return false
	}
	e.Do(func() { ep.num = testutil.Value(e.Attach(ep))(t) })
	ep.Kick()
	testutil.Receive(t, "the turn of the helper", gate)
	testutil.Must(t, d.Close())
}

// TestStepWhileHeld: the holder of an engine does the Steps of others.
func TestStepWhileHeld(t *testing.T) {
	_, a, b := pair(t, Options{})
	to := attach(t, a.Engine(0), &endpoint{})
	from := attach(t, b.Engine(0), &endpoint{}).connect(addrB, addrA, to.num)
	b.Engine(0).Do(func() { from.send = 3; b.Engine(0).Schedule(&from.Handle) })
	held(b.Engine(0), func() {})
	a.Engine(0).Do(func() {
		a.Engine(0).Step() // as another goroutine would
		testutil.Equal(t, to.received, 0, "packets before the holder's next turn")
	})
	held(a.Engine(0), func() { testutil.Equal(t, to.received, 3, "packets") })

	// The holder is in the middle of a turn with a Step of its own, and has received already.
	to.onReceive = func(ep *endpoint) {
		if ep.received == 4 {
			from.send = 1
			from.Kick()
			a.Engine(0).Step()
		}
	}
	from.send = 1
	from.Kick()
	a.Engine(0).Step()
	testutil.Equal(t, to.received, 5, "packets")
}

// TestFairness: endpoints that always have more to send take turns, and a turn is bounded.
func TestFairness(t *testing.T) {
	d := alone(t, Options{})
	e := d.Engine(0)
	const n = 3*maxRuns + 7
	total := 0
	var eps [n]*endpoint
	for i := range eps {
		eps[i] = attach(t, e, &endpoint{onRun: func(*endpoint) bool { total++; return true }})
	}
	e.Do(func() {
		for _, ep := range eps {
			e.Schedule(&ep.Handle)
		}
	})
	for range 50 {
		before := total
		e.Step()
		testutil.Equal(t, total-before, maxRuns, "endpoints run in one turn")
		least, most := eps[0].runs, eps[0].runs
		for _, ep := range eps {
			least, most = min(least, ep.runs), max(most, ep.runs)
		}
		testutil.MustTrue(t, most-least <= 1, "runs between %d and %d", least, most)
	}
	// A single one runs once per turn.
	e.Do(func() {
		for _, ep := range eps[1:] {
			e.Detach(ep.num)
		}
	})
	before := eps[0].runs
	e.Step()
	testutil.Equal(t, eps[0].runs-before, 1, "runs of the only endpoint in a turn")
}

// TestBlocked: an endpoint whose packet finds no room continues when the socket takes it. Nothing
// is lost, and FD is readable meanwhile.
func TestBlocked(t *testing.T) {
	const n = 10_000
	mem, a, b := pair(t, Options{})
	mem.SetFaults(wiretest.Options{Refuse: 0.5, Queue: n})
	to := attach(t, a.Engine(0), &endpoint{})
	run := func(ep *endpoint) bool {
		testutil.True(t, !ep.e.conn.blocked, "an endpoint runs while the socket takes nothing")
		for ep.send > 0 {
			if !ep.packet() {
				return true
			}
		}
		return false
	}
	for range 2 {
		from := attach(t, b.Engine(0), &endpoint{onRun: run}).connect(addrB, addrA, to.num)
		b.Engine(0).Do(func() { from.send = n / 2; b.Engine(0).Schedule(&from.Handle) })
	}
	for to.received < n {
		testutil.MustTrue(t, readable(b.Engine(0).conn.FD()) || readable(a.Engine(0).conn.FD()),
			"%d packets arrived, and no engine is woken", to.received)
		settle(mem, b, a)
	}
	testutil.Equal(t, to.last, n/2, "last packet")
	testutil.True(t, b.Engine(0).conn.Stats().Blocked.Load() > 0, "the socket has never refused")
}

// TestFlood: packets of a peer to 10,000 queue pairs, and posts to all of them, do not lengthen a
// turn.
func TestFlood(t *testing.T) {
	mem, a, b := pair(t, Options{})
	e := a.Engine(0)
	const n = 10_000
	var eps [n]*endpoint
	for i := range eps {
		// Each packet stops its deadline and sets it again.
		eps[i] = attach(t, e, &endpoint{onReceive: func(ep *endpoint) {
			e.SetDeadline(&ep.Handle, e.Now()+1)
		}})
	}
	path := wire.Path{Local: addrB, Remote: addrA}
	sent := 0
	from := attach(t, b.Engine(0), &endpoint{onRun: func(from *endpoint) bool {
		for range wire.MaxBatch {
			from.path, from.to, from.send = path, eps[sent%n].num, 1
			if sent%7 == 6 {
				from.to = eps[sent%n].num ^ 1 // most likely nobody's
			}
			if !from.packet() {
				return true
			}
			sent++
		}
		return false
	}})
	e.Do(func() { e.count.Most() })
	for sent < 3*n {
		from.Kick()
		before := 0
		e.Do(func() { before = int(e.conn.Stats().Received.Load()) })
		e.Step()
		testutil.MustTrue(t, int(e.conn.Stats().Received.Load())-before <= wire.MaxBatch,
			"more than a batch in a turn")
		mem.Advance(1)
	}
	e.Do(func() {
		// Steps are packets, deadlines with the height of their heap, and endpoints run.
		const bound = wire.MaxBatch*8 + maxExpired*10 + maxRuns
		testutil.True(t, e.count.Most() <= bound, "a turn of more than %d steps", bound)
	})
	testutil.True(t, e.stats.Unknown.Load() > 0, "no packet to a queue pair that does not exist")
	ran, again := 0, func(*endpoint) bool { return false }
	e.Do(func() {
		for _, ep := range eps {
			ep.onRun = func(ep *endpoint) bool { ran++; ep.onRun = again; return false }
			ep.Kick()
		}
	})
	testutil.Until(t, "all have run", func() (all bool) {
		e.Do(func() { all = ran == n })
		return all
	})
	e.Do(func() {
		testutil.True(t, e.count.Most() <= 3*maxRuns, "posts to queue pairs lengthen a turn")
	})
}

// TestManyPackets has many endpoints that send as much as they can in each turn.
func TestManyPackets(t *testing.T) {
	_, a, _ := pair(t, Options{})
	e := a.Engine(0)
	const n, share = 100, 128
	ran := 0
	var eps [n]*endpoint
	for i := range eps {
		eps[i] = attach(t, e, &endpoint{onRun: func(ep *endpoint) bool {
			ran++
			for range share {
				ep.packet()
			}
			return ep.send > 0
		}}).connect(addrA, addrB, 5)
		eps[i].send = 2 * share
	}
	e.Do(func() {
		for _, ep := range eps {
			e.Schedule(&ep.Handle)
		}
	})
	sent := func() int { return int(e.conn.Stats().Sent.Load()) }
	last := sent()
	testutil.True(t, last < maxSent+share, "%d packets in the first turn", last)
	for sent() < n*2*share {
		e.Step()
		testutil.MustTrue(t, sent() > last && sent()-last < maxSent+share, "%d packets in a turn",
			sent()-last)
		last = sent()
	}
	testutil.Equal(t, ran, 2*n, "runs of endpoints")
}

// TestSingles: addresses are remembered, and their number is bounded.
func TestSingles(t *testing.T) {
	a := alone(t, Options{})
	for i := range 3 * maxSingles {
		to := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		testutil.MustTrue(t, !a.SendsSingly(to), "address %d is known", i)
		a.SendSingly(to)
		testutil.MustTrue(t, a.SendsSingly(to) && len(a.singles.addrs) <= maxSingles,
			"address %d: %d are known", i, len(a.singles.addrs))
	}
}

// TestQPN: queue pair numbers lead to their engine, for any number of engines.
func TestQPN(t *testing.T) {
	for _, n := range []int{0, 3, 40, wire.MaxEngines + 1} {
		d := alone(t, Options{Engines: n})
		n = min(max(n, 1), wire.MaxEngines)
		testutil.Equal(t, d.Attr().NumCompVectors, n, "completion vectors")
		used := map[uint32]bool{}
		for v := range n {
			for range 20 {
				ep := attach(t, d.Engine(v), &endpoint{})
				testutil.Equal(t, wire.Steer(ep.num, n), v, "engine of queue pair %#x", ep.num)
				testutil.True(t, !used[ep.num] && ep.num >= firstQPN && ep.num <= lastQPN,
					"queue pair number %#x", ep.num)
				used[ep.num] = true
			}
		}
	}
}

// TestDetach: nothing is called after Detach.
func TestDetach(t *testing.T) {
	mem := wiretest.New(wiretest.Options{Manual: true})
	d := device(t, mem, "a", addrA, Options{})
	e := d.Engine(0)
	ep := attach(t, e, &endpoint{})
	other := attach(t, e, &endpoint{})
	e.Do(func() {
		e.SetDeadline(&ep.Handle, 1)
		e.SetDeadline(&other.Handle, 1)
		e.Schedule(&ep.Handle)
		e.Schedule(&other.Handle)
		e.Detach(ep.num)
		e.Schedule(&ep.Handle)
		e.SetDeadline(&ep.Handle, 1)
	})
	d.HandOver(packetTo(ep.num, 1))
	ep.Kick()
	mem.Advance(10)
	e.Step()
	testutil.Equal(t, ep.runs+ep.expired+ep.received, 0, "calls after Detach")
	testutil.Equal(t, other.expired, 1, "deadlines of the neighbour")
	testutil.Equal(t, e.stats.Unknown.Load(), 1, "packets to nobody")
	testutil.Equal(t, d.qps.Load(), 1, "queue pairs counted")
}

// TestHandOver passes packets to an engine from several goroutines: each arrives once, unchanged
// and in the order of its goroutine, or is counted as lost.
func TestHandOver(t *testing.T) {
	d := alone(t, Options{Engines: 2})
	const producers, packets = 4, 3000
	e := d.Engine(1)
	var lasts [producers]uint64
	ep := attach(t, e, &endpoint{onReceive: func(ep *endpoint) {
		p, n := ep.last>>32, ep.last&0xffffffff
		if p == producers {
			return
		}
		testutil.True(t, n > lasts[p], "packet %d of producer %d after %d", n, p, lasts[p])
		lasts[p] = n
	}})
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			for n := range packets {
				d.HandOver(packetTo(ep.num, uint64(p)<<32|uint64(n+1)))
				if n%8 == 0 {
					e.Step()
				}
			}
		})
	}
	wg.Wait()
	for range inboxSlots/wire.MaxBatch + 1 {
		e.Step()
		e.Do(func() {}) // after the turn of a helper goroutine, if there is one
	}
	e.Do(func() {
		handed, lost := e.stats.HandedOver.Load(), e.stats.HandOverLost.Load()
		testutil.Equal(t, uint64(ep.received), handed, "packets received")
		testutil.Equal(t, handed+lost, producers*packets, "packets counted")
	})
	d.HandOver(packetTo(wire.CMQPN, 1))
	testutil.Equal(t, d.Engine(0).stats.HandOverLost.Load(), 1, "packets of the manager")
	// Without turns the ring fills up.
	before := e.stats.HandOverLost.Load()
	for range inboxSlots + 5 {
		d.HandOver(packetTo(ep.num, producers<<32))
	}
	testutil.Equal(t, e.stats.HandOverLost.Load()-before, 5, "packets without room")
	received := ep.received
	e.Step()
	testutil.Equal(t, ep.received-received, wire.MaxBatch, "packets from the inbox in one turn")
}

// TestDeadlines: 10,000 deadlines at once are spread over turns, each fires once and not too early.
// Putting one off or stopping it takes no step of the heap.
func TestDeadlines(t *testing.T) {
	mem := wiretest.New(wiretest.Options{Manual: true})
	d := device(t, mem, "a", addrA, Options{})
	e := d.Engine(0)
	const n = 10_000
	expired := 0
	var eps [n]*endpoint
	for i := range eps {
		eps[i] = attach(t, e, &endpoint{onExpire: func(ep *endpoint) {
			expired++
			testutil.True(t, ep.at == 0 && int(e.Now()) >= 1000, "deadline at %d expired at %d",
				ep.at, e.Now())
		}})
	}
	turns := func() (turns int) {
		for before := -1; before != expired; turns++ {
			before = expired
			e.Step()
			testutil.MustTrue(t, expired-before <= maxExpired, "%d deadlines in a turn",
				expired-before)
		}
		return turns - 1
	}
	for i, ep := range eps {
		e.Do(func() { e.SetDeadline(&ep.Handle, 1000+durations(i)) })
	}
	mem.Advance(999 - 1)
	testutil.Equal(t, turns(), 0, "turns with deadlines before their time")
	mem.Advance(10_000)
	testutil.Equal(t, turns(), (n+maxExpired-1)/maxExpired, "turns of 10,000 deadlines")
	testutil.Equal(t, expired, n, "deadlines expired")
	for i, ep := range eps {
		testutil.MustEqual(t, ep.expired, 1, "endpoint %d", i)
	}

	for _, ep := range eps {
		e.Do(func() { e.SetDeadline(&ep.Handle, e.Now()+1000) })
	}
	e.Do(func() {
		e.count.Most()
		for r := range 10 {
			for _, ep := range eps {
				e.SetDeadline(&ep.Handle, e.Now()+1000+durations(r))
			}
		}
		for _, ep := range eps[1:] {
			e.SetDeadline(&ep.Handle, 0)
		}
		testutil.Equal(t, e.count.Most(), 0, "steps of the heap")
	})
	// The stopped ones leave the heap when their time has come, a bounded number per turn.
	expired = 0
	mem.Advance(10_000)
	for range n/maxExpired + 2 {
		e.Step()
	}
	e.Do(func() {
		testutil.Equal(t, expired, 1, "deadlines expired")
		testutil.Equal(t, e.deadlines.Len(), 0, "entries of the heap")
	})
}

// durations spreads deadlines out of order.
func durations(i int) time.Duration { return time.Duration(i * 7919 % 10_007 % 5000) }

// TestHeap compares the deadlines with a plain list of times.
func TestHeap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var d deadlines
	var hs [40]Handle
	want := map[*Handle]time.Duration{}
	now := time.Duration(1)
	for range 20_000 {
		h := &hs[r.IntN(len(hs))]
		switch r.IntN(6) {
		case 0:
			d.remove(h)
			delete(want, h)
		case 1:
			d.set(h, 0)
			delete(want, h)
		case 2:
			now += time.Duration(r.IntN(20))
			for at := d.first(); at != 0 && at <= now; at = d.first() {
				if h := d.pop(now); h != nil {
					testutil.MustTrue(t, want[h] != 0 && want[h] <= now, "expired at %d, want %d",
						now, want[h])
					delete(want, h)
				}
			}
			for _, at := range want {
				testutil.MustTrue(t, at > now, "deadline %d has not expired at %d", at, now)
			}
		default:
			at := now + time.Duration(r.IntN(100))
			d.set(h, at)
			want[h] = at
		}
		for i := range hs {
			testutil.MustTrue(t, hs[i].at == 0 || d.At(&hs[i].deadline) <= int64(hs[i].at),
				"entry of endpoint %d", i)
		}
	}
}

// TestReads: endpoints that wait for room get it in their order. None waits for longer than
// readTime until the one before it has given up its room.
func TestReads(t *testing.T) {
	mem := wiretest.New(wiretest.Options{Manual: true})
	d := device(t, mem, "a", addrA, Options{})
	e := d.Engine(0)
	all := e.reads.all
	var got []int
	var eps [3]*endpoint
	var rooms [3]Reservation
	for i := range eps {
		eps[i] = attach(t, e, &endpoint{onRun: func(ep *endpoint) bool {
			if !rooms[i].node.Listed() && e.ReserveReads(&ep.Handle, &rooms[i], all) {
				got = append(got, i)
			}
			return false
		}})
		eps[i].Kick()
	}
	testutil.EqualSlices(t, got, []int{0}, "reservations")
	for i := range 2 { // nobody gives up its room
		mem.Advance(readTime)
		e.Step()
		testutil.EqualSlices(t, got, []int{0, 1, 2}[:i+2], "reservations")
		e.Step() // the next one asks again
	}
	// An endpoint asks when all room is free and the first that waits has not run yet.
	eps[0].Kick()
	e.Do(func() {
		e.ReleaseReads(&rooms[2])
		testutil.True(t, !e.ReserveReads(&eps[1].Handle, &rooms[1], all), "room out of turn")
	})
	testutil.EqualSlices(t, got, []int{0, 1, 2, 0}, "reservations")
	e.Do(func() { e.ReleaseReads(&rooms[0]) })
	testutil.EqualSlices(t, got, []int{0, 1, 2, 0, 1}, "reservations")
}
