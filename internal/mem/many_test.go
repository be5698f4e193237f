package mem

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// expire ends waits and returns their number.
func expire(p *Pool, before int64) int {
	n := p.waiters
	for next := p.Expire(before); next() > 0; {
	}
	return n - p.waiters
}

// TestManyWait: however many flows wait, a look at them is bounded, all have their turn, and
// waiting flows hold others back meanwhile.
func TestManyWait(t *testing.T) {
	for _, n := range []int{10, 10_000} {
		p := newTestPool(t, 64*mebi, 0)
		var all []*Allocation
		f := &Flow{}
		for a := new(Allocation); p.Alloc(a, f, BlockMax); a = new(Allocation) {
			all = append(all, a)
		}
		var log []string
		flows, users := make([]Flow, n), make([]*user, n)
		for i := range flows {
			flows[i].Host = new(Share)
			users[i] = newUser("u", &log)
			p.Wait(&users[i].w, &flows[i], 4096, 1)
		}
		late := &Flow{Host: new(Share)}
		served, calls := 0, 0
		for served < n {
			if len(all) > 0 && p.Available() < 2*BlockMax {
				all[0].Free()
				all = all[1:]
			}
			testutil.MustTrue(t, !p.Alloc(new(Allocation), late, BlockMax/2),
				"a late one overtakes the waiting ones")
			granted := p.Serve()
			testutil.MustTrue(t, granted <= serveMost && (granted != 0 || p.cursor != nil),
				"%d of %d were served, and then %d", served, n, granted)
			served += granted
			calls++
		}
		least := (n + serveMost - 1) / serveMost
		testutil.True(t, calls >= least && calls <= 3*least+1, "%d waiters took %d turns", n, calls)
		for _, u := range users {
			u.w.Free()
		}
		freeAll(all)
	}
}

// TestManyKept: if the first of many flows have to wait, a search is still bounded, and flows
// after them that can be served are served.
func TestManyKept(t *testing.T) {
	p := newTestPool(t, 64*mebi, 0)
	var hung Share
	var all []*Allocation
	hog(p, &Flow{Host: new(Share), Namespace: &hung}, mebi, &all)
	var log []string
	users := make([]*user, 1000)
	for i := range users {
		h := new(Share)
		h.used[dataPool] = 1 // not its first allocation
		users[i] = newUser("u", &log)
		p.Wait(&users[i].w, &Flow{Host: h, Namespace: &hung}, 8*mebi, 1)
	}
	last := newUser("last", &log)
	p.Wait(&last.w, &Flow{Host: new(Share), Namespace: new(Share)}, 4096, 1)
	calls := 0
	for last.w.Waiting() {
		p.Serve()
		testutil.MustTrue(t, calls <= len(users)/searchMost, "not served after %d searches", calls)
		calls++
	}
	testutil.True(t, calls >= len(users)/searchMost, "%d flows were looked at in %d turns",
		len(users), calls)
	for p.CanServe() {
		p.Serve()
	}
	testutil.Equal(t, expire(p, 2), len(users), "waits were ended")
	last.w.Free()
	freeAll(all)
}

// TestFreedInSearch: memory freed during a search also serves flows that the search has passed,
// without another event.
func TestFreedInSearch(t *testing.T) {
	p := newTestPool(t, 64*mebi, 0)
	var all []*Allocation
	for a := new(Allocation); p.Alloc(a, new(Flow), BlockMax); a = new(Allocation) {
		all = append(all, a)
	}
	var log []string
	first := newUser("first", &log)
	h := new(Share)
	h.used[dataPool] = 1 // not its first allocation
	p.Wait(&first.w, &Flow{Host: h}, mebi, 1)
	users := make([]*user, 2*searchMost)
	for i := range users {
		users[i] = newUser("u", &log)
		p.Wait(&users[i].w, &Flow{Host: &Share{Limit: 1}}, mebi, 1)
	}
	for p.CanServe() {
		testutil.MustEqual(t, p.Serve(), 0, "served while there is no memory")
	}
	p.changed = true
	for i := 0; p.CanServe(); i++ { // as Arm of a transport does
		if i == 0 {
			freeAll(all)
		}
		if i > 2*len(users)/searchMost {
			p.Serve()
		}
	}
	testutil.True(t, !first.w.Waiting(), "memory was freed, and the first one does not get any")
	expire(p, 2)
	first.w.Free()
}

// TestExpireAll: all waits of a flow that took too long end, in pieces.
func TestExpireAll(t *testing.T) {
	p := newTestPool(t, 64*mebi, 0)
	var all []*Allocation
	f := &Flow{Host: new(Share)}
	hog(p, f, mebi, &all)
	var log []string
	for range 1000 {
		u := newUser("u", &log)
		p.Wait(&u.w, f, BlockMax, 1)
	}
	late := newUser("late", &log)
	p.Wait(&late.w, f, BlockMax, 2)
	n := 0
	for next := p.Expire(2); ; n++ {
		before := p.waiters
		if next() == 0 {
			break
		}
		ended := before - p.waiters
		testutil.MustTrue(t, ended <= expireMost, "%d waits end in a piece", ended)
	}
	testutil.True(t, p.waiters == 1 && n <= 1000/expireMost+2, "%d wait after %d pieces, want 1",
		p.waiters, n)
	late.w.Cancel()
	freeAll(all)
}
