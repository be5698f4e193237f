package mem

import (
	"github.com/nvmf-target/nvmf-target/internal/list"
)

// Wait queues a, which has no memory and does not wait, for n bytes of a flow. now is the start of
// the wait, for Expire.
func (p *Pool) Wait(a *Allocation, f *Flow, n int, now int64) {
	q := p.queue(f)
	p.wait(q, &q.waiting, a, n, now)
}

// WaitReserve is Wait for memory that may come from the reserve. It goes ahead of all calls of Wait
// for the same flow.
func (p *Pool) WaitReserve(a *Allocation, f *Flow, n int, now int64) {
	q := p.queue(f)
	p.wait(q, &q.urgent, a, n, now)
}

func (p *Pool) wait(q *flowQueue, l *list.List[Allocation], a *Allocation, n int, now int64) {
	a.pool, a.queue, a.list = p, q, l
	a.size, a.since, a.Segs = n, now, a.Segs[:0]
	alone := q.empty()
	if alone {
		p.waiting.Push(q, &q.node)
		p.flows.Add(q, &q.place)
	}
	l.Push(a, &a.node)
	p.waiters++
	switch {
	case !alone: // it may be served before flows that it has held back so far
		p.changed = p.changed || l.First() == a
	case p.servable(q) != nil: // otherwise it holds others back from now on
		p.changed = true
	}
}

// Promote changes a Wait of a into a WaitReserve, ordered by the start of the wait. If a is not in
// a Wait, it does nothing. It looks at the other calls of WaitReserve for the flow: one for each
// queue of the host that is stalled, and for each of its compounds, which have bounds for a host.
func (p *Pool) Promote(a *Allocation) {
	q := a.queue
	if !a.Waiting() || a.list == &q.urgent {
		return
	}
	q.waiting.Remove(&a.node)
	a.list, p.changed = &q.urgent, true
	q.urgent.Push(a, &a.node)
	for u := range q.urgent.All() {
		if u == a {
			break
		}
		if u.since > a.since {
			q.urgent.Remove(&u.node)
			q.urgent.Push(u, &u.node)
		}
	}
}

// Cancel ends the wait of a if it waits.
func (a *Allocation) Cancel() {
	if a.Waiting() {
		a.withdraw()
		a.pool.scan += 2 // holds nobody back until the next search
	}
}

// withdraw ends the wait of a.
func (a *Allocation) withdraw() {
	p, q := a.pool, a.queue
	a.list.Remove(&a.node)
	p.waiters--
	p.changed = true
	if q.empty() {
		p.pass(q)
		p.waiting.Remove(&q.node)
		p.flows.Remove(&q.place)
	}
	if p.waiting.Empty() {
		p.scan += 2 // nobody is held back
	}
}

// Waiting reports whether a waits for memory.
func (a *Allocation) Waiting() bool { return a.node.Listed() }

const (
	// searchMost is the number of flows that a search looks at before other work has its turn, and
	// serveMost the number of waiters served.
	searchMost = 128
	serveMost  = 64
	// shortagesMost is the number of shortages that SearchHolders looks at, and expireMost the
	// number of waits that Expire ends in a step.
	shortagesMost = 8
	expireMost    = 32
)

// search returns the next waiter that can be served. It returns nil if there is none, or with a
// non-nil cursor if it has to look at more flows later. Flows take turns: memory that one flow
// waits for is not given to later flows, unless they have little.
func (p *Pool) search() *Allocation {
	if p.cursor == nil {
		if !p.changed && p.searched == p.arena.Available() || p.waiting.Empty() {
			return nil
		}
		p.scan++
		p.changed, p.cursor = false, p.waiting.First()
	}
	for looked := 0; p.cursor != nil && looked < searchMost; looked++ {
		q := p.cursor
		if a := p.servable(q); a != nil {
			return a
		}
		p.pass(q)
	}
	p.searched = p.arena.Available()
	return nil
}

// pass moves the cursor on if it is at q.
func (p *Pool) pass(q *flowQueue) {
	if p.cursor == q {
		p.cursor = p.waiting.Next(&q.node)
	}
}

// complete returns the last search that has looked at all flows. Its results are still valid.
func (p *Pool) complete() uint64 {
	if p.cursor != nil {
		return p.scan - 1
	}
	return p.scan
}

// servable returns the waiting allocation of a flow that can be served, nil if there is none.
func (p *Pool) servable(q *flowQueue) *Allocation {
	if a := q.urgent.First(); a != nil && p.free(true) >= a.size && p.within(q, a.size, true) {
		return a
	}
	a := q.waiting.First()
	switch {
	case a == nil || p.yields(q, a.size, p.scan):
	case p.free(false) >= a.size && p.within(q, a.size, false):
		return a
	default:
		p.keep(q, a.size)
	}
	return nil
}

// keep records why a flow cannot be served with n bytes.
func (p *Pool) keep(q *flowQueue, n int) {
	switch h := q.flow.holder(p.kind, false); {
	case h == nil, h.Limit == 0 && h.used[p.kind] == 0:
		p.short = p.scan
	case !p.namespaceWithin(q, n, false): // it may be stuck, and the host can go on with others
		q.flow.Namespace.keeps[p.kind] = p.scan
	default:
		h.keeps[p.kind] = p.scan
	}
}

// yields reports whether a flow gets nothing because another one waits, according to the searches
// from since on.
func (p *Pool) yields(q *flowQueue, n int, since uint64) bool {
	f := q.flow
	h, ns := f.holder(p.kind, false), f.Namespace
	kept := p.short >= since || f.Host.keepsIn(p, since) || f.Network.keepsIn(p, since) ||
		ns.keepsIn(p, since) && (h == nil || h.used[p.kind] > 0)
	return kept && !p.isLittle(q, n)
}

// keepsIn reports whether a search from since on found a waiter that this share holds back.
func (s *Share) keepsIn(p *Pool, since uint64) bool {
	return s != nil && s.keeps[p.kind] >= since
}

// CanServe reports whether Serve would grant something or has to look at more flows. After a
// complete search, flows that it passed are searched again if something has changed.
func (p *Pool) CanServe() bool {
	return p.search() != nil || p.cursor != nil || p.changed && !p.waiting.Empty()
}

// Serve grants memory to at most serveMost waiters while there is enough, and returns their number.
func (p *Pool) Serve() (n int) {
	for n < serveMost {
		a := p.search()
		if a == nil {
			break
		}
		q, urgent := a.queue, a.list == &a.queue.urgent
		p.pass(q)
		a.withdraw()
		if !q.empty() { // others have the next turn
			p.waiting.Remove(&q.node)
			p.waiting.Push(q, &q.node)
		}
		p.take(a, q, a.size, urgent)
		a.Owner.Granted()
		n++
	}
	return n
}

// Expire returns a function that ends the waits that began before a time, in pieces; see
// list.Pieces. A step ends at most expireMost of them.
func (p *Pool) Expire(before int64) (next func() int) {
	var rest *flowQueue // the flow may have more of them
	end := func(q *flowQueue) int {
		n := 0
		for _, l := range []*list.List[Allocation]{&q.urgent, &q.waiting} {
			for a := l.First(); a != nil && a.since < before && n < expireMost; a = l.First() {
				a.Cancel()
				a.Owner.Expired()
				n++
			}
		}
		if rest = nil; n == expireMost {
			rest = q
		}
		return 1 + n
	}
	walk := p.flows.Walk(end)
	return func() int {
		if rest != nil {
			return end(rest)
		}
		return walk()
	}
}

// Shortage describes memory that a flow waits for. If Namespace is set, the namespace has too much,
// and only its memory helps. Otherwise memory of Host, which may be a network, or of a host with
// more helps.
type Shortage struct{ Host, Namespace *Share }

// Needs reports whether memory of flow f would help.
func (s Shortage) Needs(f *Flow) bool {
	return s.Namespace == nil || f != nil && f.Namespace == s.Namespace
}

// HoldPart is the divisor of the longest wait for memory that gives the time after which holders of
// memory without progress lose it, so that the wait can end.
const HoldPart = 4

// shortageOf returns the shortage of a flow, and whether it has waited since before the given time.
func (p *Pool) shortageOf(q *flowQueue, before int64) (s Shortage, waits bool) {
	a, urgent := q.urgent.First(), true
	if a == nil {
		a, urgent = q.waiting.First(), false
	}
	s.Host = q.flow.holder(p.kind, urgent)
	if s.Host == nil {
		s.Host = &Share{}
	}
	if p.hostWithin(q, a.size, urgent) && !p.namespaceWithin(q, a.size, urgent) {
		s.Namespace = q.flow.Namespace
	}
	return s, a.since < before
}

// SearchHolders returns a function that examines, in pieces (see list.Pieces), at most
// shortagesMost flows that have waited since before the given time; the next call goes on with
// others. For each it calls search. The result look finds holders of the memory, in pieces, and end
// makes one give it up; if that returns true, other flows may be served now and are skipped.
func (p *Pool) SearchHolders(before int64,
	search func(Shortage) (look func() int, end func() bool),
) (next func() int) {
	left := min(shortagesMost, p.flows.Len())
	var look func() int
	var end func() bool
	return func() int {
		switch n := p.flows.Len(); {
		case look != nil:
			if steps := look(); steps > 0 {
				return steps
			}
			if look = nil; end() {
				left = 0
			}
		case left == 0 || n == 0:
			return 0
		default:
			left--
			p.shortage = (p.shortage + 1) % n
			if s, waits := p.shortageOf(p.flows.At(p.shortage), before); waits {
				look, end = search(s)
			}
		}
		return 1
	}
}

// HoldLimit returns how long memory of flow f may be held without progress while the shortage s
// lasts, in the unit of limit, the longest wait for memory. It is limit/HoldPart if the host of f
// has more than the waiter. It is the rest of limit if the host is the waiter itself, since its
// network may be interrupted. 0 means no limit.
func (p *Pool) HoldLimit(f *Flow, s Shortage, limit int64) int64 {
	switch {
	case !s.Needs(f):
		return 0
	case f == nil || f.Host == nil:
		return limit / HoldPart
	case f.Host == s.Host, f.Network == s.Host:
		return limit - limit/HoldPart
	case f.holder(p.kind, false).used[p.kind] > s.Host.used[p.kind]:
		return limit / HoldPart
	}
	return 0
}

// Close unmaps the memory; see Arena.Close.
func (p *Pool) Close() error { return p.arena.Close() }
