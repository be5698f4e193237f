package mem

import (
	"math/rand/v2"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
	if ordinary > 48*mebi || host.Used() > 56*mebi {
		t.Errorf("%d KiB, %d with in-capsule data", ordinary>>10, host.Used()>>10)
	}
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
