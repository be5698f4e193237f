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
	if host.Used() != before-mebi || p.Usage().Orphaned != mebi || hung.Used() < 29*mebi {
		t.Errorf("%d bytes of the host, %d orphaned, %d hang", host.Used(), p.Usage().Orphaned,
			hung.Used())
	}
	free()
	if host.Used() != before-mebi || p.Usage().Orphaned != 0 || hung.Used() > 30*mebi {
		t.Errorf("%d bytes of the host, %d orphaned, %d hang", host.Used(), p.Usage().Orphaned,
			hung.Used())
	}
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
		if hosts[i].Used() != 0 || namespaces[i].Used() != 0 {
			t.Errorf("%d, %d bytes stay counted", hosts[i].Used(), namespaces[i].Used())
		}
	}
	for _, f := range flows {
		testutil.True(t, f.queues[dataPool].used == 0 && f.queues[dataPool].empty() &&
			!p.HasWaiters() && p.Usage() == (PoolUsage{Size: 8 * mebi}), "a flow is not at rest")
	}
}
