package mem

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

const mebi = 1 << 20

// hog allocates n bytes at a time for a flow until it gets none, and returns the number of
// allocations.
func hog(p *Pool, f *Flow, n int, all *[]*Allocation) (got int) {
	for {
		a := new(Allocation)
		if !p.Alloc(a, f, n) {
			return got
		}
		got += n
		*all = append(*all, a)
	}
}

func freeAll(all []*Allocation) {
	for _, a := range all {
		a.Free()
	}
}

// TestShares: the parts of 64 MiB, with a reserve of 4 MiB, for hosts and namespaces that take all
// they can.
func TestShares(t *testing.T) {
	for name, tt := range map[string]struct {
		hosts, namespaces int // each host works with each namespace
		least, most       int // MiB of the last host
	}{
		"one host, one namespace": {1, 1, 29, 31},
		"one host":                {1, 8, 38, 51},
		"a namespace that hangs":  {2, 1, 1, 15},
		"two hosts":               {2, 8, 8, 40},
		"three hosts":             {3, 4, 1, 40},
	} {
		p := newTestPool(t, 64*mebi, 4*mebi)
		var all []*Allocation
		shares := make([]Share, tt.namespaces)
		last := 0
		for range tt.hosts {
			host := new(Share)
			last = 0
			for i := range shares {
				last += hog(p, &Flow{Host: host, Namespace: &shares[i]}, mebi, &all)
			}
		}
		testutil.True(t, last >= tt.least*mebi && last <= tt.most*mebi,
			"%s: the last one has %d KiB, want %d to %d MiB", name, last>>10, tt.least, tt.most)
		// Another host finds memory, or the same host with another namespace.
		for range 16 {
			a := new(Allocation)
			all = append(all, a)
			testutil.True(t, p.Alloc(a, &Flow{Host: new(Share), Namespace: new(Share)}, 4096),
				"%s: nothing is left for others", name)
		}
		freeAll(all)
		if n := slices.MaxFunc(shares,
			func(a, b Share) int { return a.Used() - b.Used() }); n.Used() != 0 {
			t.Errorf("%s: %d bytes stay counted", name, n.Used())
		}
	}
}

// TestShareOfNamespace: a host with all its memory stuck in one namespace reaches another.
func TestShareOfNamespace(t *testing.T) {
	p := newTestPool(t, 64*mebi, 4*mebi)
	var host, hung, healthy, other Share
	var all []*Allocation
	toHung := &Flow{Host: &host, Namespace: &hung}
	hog(p, toHung, mebi, &all)
	testutil.True(t, hung.Used() >= 29*mebi && hung.Used() <= 31*mebi, "%d bytes hang", hung.Used())
	n := hog(p, &Flow{Host: &host, Namespace: &healthy}, mebi, &all)
	testutil.True(t, n >= 8*mebi, "%d bytes for the healthy namespace", n)
	n = hog(p, &Flow{Host: &other, Namespace: &healthy}, mebi, &all)
	testutil.True(t, n >= 4*mebi, "%d bytes for the other host", n)
	// Stuck memory is handed over and no longer counts for the host.
	before := host.Used()
	free := all[0].HandOver()
	testutil.True(t, host.Used() == before-mebi && p.Usage().Orphaned == mebi &&
		hung.Used() >= 29*mebi, "%d bytes of the host, %d orphaned, %d hang", host.Used(),
		p.Usage().Orphaned, hung.Used())
	free()
	testutil.True(t, host.Used() == before-mebi && p.Usage().Orphaned == 0 &&
		hung.Used() <= 30*mebi, "%d bytes of the host, %d orphaned, %d hang", host.Used(),
		p.Usage().Orphaned, hung.Used())
	freeAll(all)
	testutil.True(t, host.Used() == 0 && hung.Used() == 0 && healthy.Used() == 0,
		"bytes stay counted")
}

// TestShareLimit: a limit holds however much is free.
func TestShareLimit(t *testing.T) {
	p := newTestPool(t, 64*mebi, 4*mebi)
	limited := Share{Limit: 2 * mebi}
	f := &Flow{Host: &limited}
	var all []*Allocation
	if n := hog(p, f, 8192, &all); n != 2*mebi || p.Max(f) != n {
		t.Errorf("%d bytes, at most %d", n, p.Max(f))
	}
	testutil.True(t, !p.AllocReserve(new(Allocation), f, 4096) && !p.Promise(f, 4096),
		"the reserve is beyond the limit")
	freeAll(all)
}

// TestTurns: waiting flows take turns, and a large request is not starved by small ones.
func TestTurns(t *testing.T) {
	p := newTestPool(t, 64*mebi, 4*mebi)
	rest, _ := taken(p.Alloc, 59*mebi) // without a host
	var log []string
	var users [6]*user
	var flows [3]*Flow
	for i := range flows {
		flows[i] = &Flow{Host: new(Share), Namespace: new(Share)}
	}
	var held []*Allocation
	for range 4 { // much of the rest
		a := new(Allocation)
		p.AllocReserve(a, flows[0], mebi/4)
		held = append(held, a)
	}
	for i := range users {
		users[i] = newUser(string(rune('a'+i)), &log)
	}
	p.Wait(&users[0].w, flows[0], 4096, 10)
	p.Wait(&users[1].w, flows[0], 4096, 10)
	p.Wait(&users[2].w, flows[0], 4096, 10)
	p.Wait(&users[3].w, flows[1], 3*mebi, 20)
	p.Wait(&users[4].w, flows[2], 4096, 20)
	p.Wait(&users[5].w, flows[2], 4096, 20)
	p.Serve()
	testutil.MustTrue(t, len(log) == 0, "nothing is free, and %v", log)
	held[0].Free() // d waits for more: only flows with little memory go ahead
	p.Serve()
	testutil.EqualSlices(t, log, []string{"e 4096", "f 4096"}, "")
	testutil.True(t, !p.Alloc(new(Allocation), &Flow{Host: flows[0].Host}, mebi/16),
		"memory for one that has much, while d waits")
	rest.Free()
	p.Serve()
	want := []string{"a 4096", "d 3145728", "b 4096", "c 4096"}
	testutil.True(t, slices.Equal(log[2:], want) && !p.HasWaiters(), "%v", log)
	for _, u := range users {
		u.w.Free()
	}
	freeAll(held[1:])
}

// TestShortages: a shortage tells which holders of memory would help the waiters.
func TestShortages(t *testing.T) {
	p := newTestPool(t, 64*mebi, 4*mebi)
	var host, hung Share
	var all []*Allocation
	since := func(before int64) (found []Shortage) {
		next := p.SearchHolders(before, func(s Shortage) (func() int, func() bool) {
			found = append(found, s)
			return func() int { return 0 }, func() bool { return false }
		})
		for next() > 0 {
		}
		return found
	}
	toHung := &Flow{Host: &host, Namespace: &hung}
	hog(p, toHung, mebi, &all)
	var log []string
	u, v := newUser("u", &log), newUser("v", &log)
	p.Wait(&u.w, toHung, mebi, 10)
	testutil.True(t, slices.Equal(since(20), []Shortage{{&host, &hung}}),
		"the namespace has too much")
	fresh := &Flow{Host: &host, Namespace: new(Share)}
	hog(p, fresh, mebi, &all)
	p.Wait(&v.w, fresh, 2*mebi, 15)
	testutil.True(t, slices.Equal(since(20), []Shortage{{&host, nil}, {&host, nil}}),
		"the host has too much")
	testutil.True(t, len(since(15)) == 1 && len(since(10)) == 0, "nobody has waited so long")
	u.w.Cancel()
	v.w.Cancel()
	rest, _ := taken(p.Alloc, p.Available())
	p.Wait(&u.w, &Flow{Host: new(Share)}, 4096, 10)
	if s := since(20); len(s) != 1 || s[0].Namespace != nil || s[0].Host.Used() != 0 {
		t.Error("nothing is free")
	}
	u.w.Cancel()
	rest.Free()
	freeAll(all)
}

// TestHoldLimit: holders with more memory than the waiter lose it first, the same host late, and
// holders with less never.
func TestHoldLimit(t *testing.T) {
	p := newTestPool(t, 64*mebi, 4*mebi)
	var all []*Allocation
	flow := func(n int) *Flow {
		f := &Flow{Host: new(Share), Namespace: new(Share)}
		for range n {
			a := new(Allocation)
			p.Alloc(a, f, 4096)
			all = append(all, a)
		}
		return f
	}
	waits, more, less := flow(2), flow(3), flow(1)
	s := Shortage{Host: waits.Host}
	for _, tt := range []struct {
		f    *Flow
		s    Shortage
		want int64
	}{
		{more, s, 1},
		{nil, s, 1},
		{waits, s, 3},
		{less, s, 0},
		{more, Shortage{Host: waits.Host, Namespace: waits.Namespace}, 0},
		{more, Shortage{Host: waits.Host, Namespace: more.Namespace}, 1},
	} {
		testutil.Equal(t, p.HoldLimit(tt.f, tt.s, 4), tt.want, "quarters")
	}
	freeAll(all)
}

// TestFlowOfSeveralPools: a flow may wait in several pools of a kind. Each pool serves its own
// waiters.
func TestFlowOfSeveralPools(t *testing.T) {
	var pools [2]*Pool
	f := &Flow{Host: new(Share), Namespace: new(Share)}
	var log []string
	users := []*user{newUser("a", &log), newUser("b", &log)}
	var rest [2]*Allocation
	for i := range pools {
		a := testutil.Value(NewArena("test staging", 64<<10))(t)
		pools[i] = NewStagingPool(a)
		rest[i], _ = taken(pools[i].Alloc, 64<<10)
		pools[i].Wait(&users[i].w, f, 4096, 0)
	}
	for i, p := range pools {
		rest[i].Free()
		testutil.True(t, p.Serve() == 1 && !p.HasWaiters() && p.Usage().Used == 4096 &&
			users[i].w.Segs[0].Region == p.Region().ID(), "pool %d: %v", i, log)
	}
	for i, u := range users {
		u.w.Free()
		testutil.Check(t, pools[i].Close())
	}
}

// TestSharesRandomly: the counts always agree with the allocations.
func TestSharesRandomly(t *testing.T) {
	p := newTestPool(t, 8*mebi, mebi)
	rnd := rand.New(rand.NewPCG(1, 2))
	var hosts, namespaces [4]Share
	var flows []*Flow
	for h := range hosts {
		for n := range namespaces {
			flows = append(flows, &Flow{Host: &hosts[h], Namespace: &namespaces[n]})
		}
	}
	var log []string
	users := make([]*user, 200)
	orphans := []func(){}
	for i := range users {
		users[i] = newUser("u", &log)
	}
	for range 100_000 {
		u, f, n := users[rnd.IntN(len(users))], flows[rnd.IntN(len(flows))], 1+rnd.IntN(256<<10)
		log = log[:0]
		switch has := len(u.w.Segs) > 0; {
		case u.w.Waiting():
			if rnd.IntN(4) == 0 {
				u.w.Cancel()
			} else {
				p.Promote(&u.w)
			}
		case has && rnd.IntN(20) == 0:
			orphans = append(orphans, u.w.HandOver())
		case has:
			u.w.Free()
			p.Serve()
		case rnd.IntN(3) == 0:
			testutil.MustTrue(t, !p.Promise(f, n) || p.AllocPromised(&u.w, f, n),
				"what was promised is not there")
			p.EndPromises()
		case rnd.IntN(2) == 0:
			if !p.Alloc(&u.w, f, n) {
				p.Wait(&u.w, f, n, int64(rnd.IntN(1000)))
			}
		default:
			if !p.AllocReserve(&u.w, f, n) {
				p.WaitReserve(&u.w, f, n, int64(rnd.IntN(1000)))
			}
		}
		if len(orphans) > 8 {
			orphans[0]()
			orphans = orphans[1:]
		}
		total := 0
		for i := range namespaces {
			total += namespaces[i].Used()
		}
		if got := 8*mebi - p.arena.Available(); got != total || p.Promised() != 0 {
			t.Fatalf("%d bytes are allocated, %d counted", got, total)
		}
		some := false
		if p.scan++; !p.waiting.Empty() { // a search from the beginning
			for q := range p.waiting.All() {
				some = some || p.servable(q) != nil
			}
		}
		if can := p.CanServe(); can != some {
			t.Fatalf("CanServe says %v", can)
		} else if can && p.Serve() == 0 {
			t.Fatal("CanServe says so, Serve does not")
		}
	}
	for _, u := range users {
		u.w.Cancel()
		u.w.Free()
	}
	for _, free := range orphans {
		free()
	}
	for i := range hosts {
		testutil.True(t, hosts[i].Used() == 0 && namespaces[i].Used() == 0,
			"%d, %d bytes stay counted", hosts[i].Used(), namespaces[i].Used())
	}
	for _, f := range flows {
		testutil.True(t, f.queues[dataPool].used == 0 && f.queues[dataPool].empty() &&
			!p.HasWaiters() && p.Usage() == (PoolUsage{Size: 8 * mebi}), "a flow is not at rest")
	}
}

// TestInCapsuleDataAheadOfR2Ts: in-capsule data finds memory even if its host and namespace hold
// much, because that memory may be freed only by later data on the connection.
func TestInCapsuleDataAheadOfR2Ts(t *testing.T) {
	t.Run("many hosts of one namespace", func(t *testing.T) {
		p := newTestPool(t, 64*mebi, 4*mebi)
		var namespace Share
		var all []*Allocation
		flows := make([]*Flow, 40)
		for i := range flows {
			flows[i] = &Flow{Host: new(Share), Namespace: &namespace}
		}
		for range 1000 { // R2Ts; their data comes after the capsules
			for _, f := range flows {
				if a := new(Allocation); p.Alloc(a, f, 128<<10) {
					all = append(all, a)
				}
			}
		}
		for i, f := range flows {
			a := new(Allocation)
			if all = append(all, a); !p.AllocReserve(a, f, 4096) {
				t.Errorf("host %d stands still, %d KiB are free", i, p.free(true)>>10)
			}
		}
		freeAll(all)
	})
	t.Run("a host that was alone", func(t *testing.T) {
		p := newTestPool(t, 64*mebi, 4*mebi)
		var all []*Allocation
		first := &Flow{Host: new(Share)}
		hog(p, first, 128<<10, &all)
		others := []*Flow{{Host: new(Share)}, {Host: new(Share)}}
		for range 1000 {
			for _, f := range others {
				if a := new(Allocation); p.Alloc(a, f, 128<<10) {
					all = append(all, a)
				}
			}
		}
		for range 16 {
			a := new(Allocation)
			if all = append(all, a); !p.AllocReserve(a, first, 128<<10) {
				t.Errorf("it stands still, %d KiB are free", p.free(true)>>10)
			}
		}
		freeAll(all)
	})
}

// traffic is one host that always has as many commands of n bytes for a namespace as it may: some
// have memory, and at least one waits.
type traffic struct {
	p       *Pool
	f       *Flow
	n       int
	held    []*traffic1
	waits   *traffic1
	granted int
}

type traffic1 struct {
	t *traffic
	w Allocation
}

func (c *traffic1) Granted() {
	c.t.granted++
	c.t.held, c.t.waits = append(c.t.held, c), nil
}

func (c *traffic1) Expired() {}

// fill asks for memory until it must wait.
func (t *traffic) fill() {
	for t.waits == nil {
		c := &traffic1{t: t}
		c.w.Owner = c
		if !t.p.Alloc(&c.w, t.f, t.n) {
			t.p.Wait(&c.w, t.f, t.n, 0)
			t.waits = c
			return
		}
		c.Granted()
	}
}

// TestNoTrafficStarves: hosts that always want more memory do not starve each other, with any
// sizes.
func TestNoTrafficStarves(t *testing.T) {
	shared, own := new(Share), new(Share)
	one := new(Share)
	many := func(n, size int, ns func() *Share) (all []*traffic) {
		for range n {
			all = append(all, &traffic{f: &Flow{Host: new(Share), Namespace: ns()}, n: size})
		}
		return all
	}
	sharedNS, freshNS := func() *Share { return shared }, func() *Share { return new(Share) }
	for name, tt := range map[string]struct {
		size int
		all  []*traffic
	}{
		"large and small, one namespace": {
			8, append(many(1, 4096, sharedNS), many(1, mebi, sharedNS)...),
		},
		"large and small, one namespace, 64 MiB": {
			64, append(many(1, 4096, sharedNS), many(1, 4*mebi, sharedNS)...),
		},
		"one large among many small": {
			64, append(many(60, 4096, sharedNS), many(1, mebi, sharedNS)...),
		},
		"one small among many large": {
			64, append(many(60, mebi, sharedNS), many(1, 4096, sharedNS)...),
		},
		"the largest transfer of the least memory": {
			8, append(many(3, 4096, freshNS), many(1, 2*mebi, freshNS)...),
		},
		"large and small of one host": {
			8, []*traffic{
				{f: &Flow{Host: one}, n: 4096},
				{f: &Flow{Host: one, Namespace: own}, n: mebi},
			},
		},
		"only large, many hosts": {8, many(10, 2*mebi, sharedNS)},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, tt.size*mebi, min(tt.size*mebi/8, 4*mebi))
			rnd := rand.New(rand.NewPCG(3, 4))
			for _, x := range tt.all {
				x.p = p
				x.fill()
			}
			for range 5_000 { // a device completes something
				x := tt.all[rnd.IntN(len(tt.all))]
				if len(x.held) > 0 {
					i := rnd.IntN(len(x.held))
					x.held[i].w.Free()
					x.held[i] = x.held[len(x.held)-1]
					x.held = x.held[:len(x.held)-1]
				}
				p.Serve()
				for _, x := range tt.all {
					x.fill()
				}
			}
			for i, x := range tt.all {
				testutil.True(t, x.granted >= 3, "%d: %d transfers of %d KiB, waits %v", i,
					x.granted, x.n>>10, x.waits != nil)
			}
			for _, x := range tt.all {
				x.waits.w.Cancel()
				for _, c := range x.held {
					c.w.Free()
				}
			}
		})
	}
}

// TestCanceledWaitKeepsNobodyBack: a wait that ends in any way no longer holds others back.
func TestCanceledWaitKeepsNobodyBack(t *testing.T) {
	p := newTestPool(t, 64*mebi, 4*mebi)
	var all []*Allocation
	for range 4 {
		hog(p, &Flow{Host: new(Share), Namespace: new(Share)}, mebi, &all)
	}
	var log []string
	u := newUser("u", &log)
	p.Wait(&u.w, &Flow{Host: new(Share)}, 8*mebi, 10)
	f := &Flow{Host: new(Share)}
	n := p.free(false) / 4
	if a := new(Allocation); p.Alloc(a, f, n) {
		t.Error("memory for one that asks for much, while a host without any waits")
		a.Free()
	}
	expire(p, 20)
	a := new(Allocation)
	testutil.True(t, p.Alloc(a, f, n), "nobody waits, and nothing is given out")
	freeAll(append(all, a))
}

// TestAllWaitersAreServed: all waiters get memory once its holders give it back, whichever flows
// were held back meanwhile.
func TestAllWaitersAreServed(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		p := newTestPool(t, 8*mebi, mebi)
		var hosts, namespaces [5]Share
		hosts[0].Limit = p.Max(nil) / 16
		flows := []*Flow{nil}
		for h := range hosts {
			for n := range namespaces {
				flows = append(flows, &Flow{Host: &hosts[h], Namespace: &namespaces[n]})
			}
		}
		var log []string
		users := make([]*user, 300)
		for i := range users {
			users[i] = newUser("u", &log)
		}
		for range 2000 {
			u, f := users[rnd.IntN(len(users))], flows[rnd.IntN(len(flows))]
			n := 1 + rnd.IntN(min(p.Max(f), 8<<rnd.IntN(19)))
			switch {
			case u.w.Waiting() && rnd.IntN(8) == 0:
				u.w.Cancel()
			case u.w.Waiting():
				p.Promote(&u.w)
			case len(u.w.Segs) > 0 && rnd.IntN(8) == 0:
				u.w.Free()
			case len(u.w.Segs) > 0:
			case rnd.IntN(2) == 0:
				if !p.Alloc(&u.w, f, n) {
					p.Wait(&u.w, f, n, 0)
				}
			default:
				if !p.AllocReserve(&u.w, f, n) {
					p.WaitReserve(&u.w, f, n, 0)
				}
			}
		}
		for range users {
			for _, u := range users {
				u.w.Free()
			}
			p.Serve()
		}
		testutil.MustTrue(t, !p.HasWaiters() && p.Usage().Used == 0, "seed %d: %d wait, %+v", seed,
			p.Usage().Waiters, p.Usage())
	}
}

// TestMostOfOneHost: one host takes all it can, with all its namespaces and in-capsule data, and
// others still find memory.
func TestMostOfOneHost(t *testing.T) {
	p := newTestPool(t, 64*mebi, 4*mebi)
	host := new(Share)
	var all []*Allocation
	hogs := func(alloc func(*Allocation, *Flow, int) bool) {
		for range 100 {
			f := &Flow{Host: host, Namespace: new(Share)}
			for {
				a := new(Allocation)
				if !alloc(a, f, 4096) {
					break
				}
				all = append(all, a)
			}
		}
	}
	hogs(p.Alloc)
	ordinary := host.Used()
	hogs(p.AllocReserve)
	testutil.True(t, ordinary <= 48*mebi && host.Used() <= 56*mebi,
		"%d KiB, %d with in-capsule data", ordinary>>10, host.Used()>>10)
	victim := &Flow{Host: new(Share), Namespace: new(Share)}
	var his []*Allocation
	n := hog(p, victim, 4096, &his)
	testutil.True(t, n >= mebi, "%d KiB are left for another host", n>>10)
	for range 32 {
		a := new(Allocation)
		if his = append(his, a); !p.AllocReserve(a, victim, 8192) {
			t.Error("no memory for in-capsule data of another host")
		}
	}
	t.Logf("one host: %d KiB, %d with in-capsule data; another: %d", ordinary>>10,
		host.Used()>>10, victim.Host.Used()>>10)
	freeAll(append(all, his...))
}
