package mem

import "testing"

// expire ends waits, and returns how many.
func expire(p *Pool, before int64) int {
	n := p.waiters
	for next := p.Expire(before); next() > 0; {
	}
	return n - p.waiters
}

// TestManyWait: however many flows wait, a look at them has its bound, all have their turn, and
// those that wait keep others back meanwhile.
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
			if p.Alloc(new(Allocation), late, BlockMax/2) {
				t.Fatal("one that comes late overtakes those that wait")
			}
			granted := p.Serve()
			if granted > serveMost || granted == 0 && p.cursor == nil {
				t.Fatalf("%d of %d were served, and then %d", served, n, granted)
			}
			served += granted
			calls++
		}
		if least := (n + serveMost - 1) / serveMost; calls < least || calls > 3*least+1 {
			t.Errorf("%d waiters took %d turns", n, calls)
		}
		for _, u := range users {
			u.w.Free()
		}
		freeAll(all)
	}
}

// TestManyKept: what keeps the first of many flows waiting does not make a search longer than
// others allow, and those behind it that can be served are.
func TestManyKept(t *testing.T) {
	p := newTestPool(t, 64*mebi, 0)
	var hung Share
	var all []*Allocation
	hog(p, &Flow{Host: new(Share), Namespace: &hung}, mebi, &all)
	var log []string
	users := make([]*user, 1000)
	for i := range users {
		h := new(Share)
		h.used[dataPool] = 1 // else it gets its first allocation
		users[i] = newUser("u", &log)
		p.Wait(&users[i].w, &Flow{Host: h, Namespace: &hung}, 8*mebi, 1)
	}
	last := newUser("last", &log)
	p.Wait(&last.w, &Flow{Host: new(Share), Namespace: new(Share)}, 4096, 1)
	calls := 0
	for last.w.Waiting() {
		if p.Serve(); calls > len(users)/searchMost {
			t.Fatalf("not served after %d searches", calls)
		}
		calls++
	}
	if calls < len(users)/searchMost {
		t.Errorf("%d flows were looked at in %d turns", len(users), calls)
	}
	for p.CanServe() {
		p.Serve()
	}
	if n := expire(p, 2); n != len(users) {
		t.Errorf("%d waits were ended", n)
	}
	last.w.Free()
	freeAll(all)
}
