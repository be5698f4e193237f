package mem

import (
	"iter"

	"github.com/nvmf-target/nvmf-target/internal/list"
)

// Wait queues a, which has no memory and is not waiting, for n bytes of a flow. now is the time
// that Expire compares with.
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
	if q.empty() {
		p.waiting.Push(q, &q.node)
	}
	l.Push(a, &a.node)
	p.waiters++
	p.next()
}

// Promote changes a Wait of a into a WaitReserve, ordered by when it began. If a waits otherwise,
// or not at all, it does nothing.
func (p *Pool) Promote(a *Allocation) {
	q := a.queue
	if !a.Waiting() || a.list == &q.urgent {
		return
	}
	q.waiting.Remove(&a.node)
	a.list, p.searched = &q.urgent, -1
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
	if !a.Waiting() {
		return
	}
	a.list.Remove(&a.node)
	a.pool.waiters--
	if a.queue.empty() {
		a.pool.waiting.Remove(&a.queue.node)
	}
	a.pool.scan++ // until the next search it keeps nobody back
	a.pool.searched = -1
}

// Waiting reports whether a waits for memory.
func (a *Allocation) Waiting() bool { return a.node.Listed() }

// next returns the first that can be served, nil if there is none. Flows take turns: what one waits
// for is not given to those behind it, unless they have little.
func (p *Pool) next() *Allocation {
	p.scan++
	p.searched = -1
	for q := range p.waiting.All() {
		if a := q.urgent.First(); a != nil && p.free(true) >= a.size && p.within(q, a.size, true) {
			return a
		}
		a := q.waiting.First()
		switch {
		case a == nil || p.yields(q, a.size):
		case p.free(false) >= a.size && p.within(q, a.size, false):
			return a
		default:
			p.keep(q, a.size)
		}
	}
	p.searched = p.arena.Available()
	return nil
}

// keep notes what a flow that cannot be served lacks for n bytes.
func (p *Pool) keep(q *flowQueue, n int) {
	switch h := q.flow.holder(p.kind, false); {
	case h == nil, h.Limit == 0 && h.used[p.kind] == 0:
		p.short = p.scan
	case !p.namespaceWithin(q, n, false): // which may hang: the host may go on elsewhere
		q.flow.Namespace.keeps[p.kind] = p.scan
	default:
		h.keeps[p.kind] = p.scan
	}
}

// yields reports whether a flow gets nothing because another waits.
func (p *Pool) yields(q *flowQueue, n int) bool {
	f := q.flow
	h, ns := f.holder(p.kind, false), f.Namespace
	kept := p.short == p.scan || f.Host.keepsIn(p) || f.Network.keepsIn(p) ||
		ns.keepsIn(p) && (h == nil || h.used[p.kind] > 0)
	return kept && !p.isLittle(q, n)
}

// keepsIn reports whether what has the share waits for some in this search.
func (s *Share) keepsIn(p *Pool) bool { return s != nil && s.keeps[p.kind] == p.scan }

// CanServe reports whether Serve would grant something.
func (p *Pool) CanServe() bool {
	return !p.waiting.Empty() && p.searched != p.arena.Available() && p.next() != nil
}

// Serve grants memory to waiters while there is enough, and returns how many got it.
func (p *Pool) Serve() (n int) {
	if p.waiting.Empty() || p.searched == p.arena.Available() {
		return 0
	}
	for a := p.next(); a != nil; a = p.next() {
		q, urgent := a.queue, a.list == &a.queue.urgent
		a.Cancel()
		if !q.empty() { // the next turn is another's
			p.waiting.Remove(&q.node)
			p.waiting.Push(q, &q.node)
		}
		p.take(a, q, a.size, urgent)
		a.Owner.Granted()
		n++
	}
	return n
}

// Expire removes the waiters that have waited since before a time, and returns how many.
func (p *Pool) Expire(before int64) (n int) {
	for a := p.expired(before); a != nil; a = p.expired(before) {
		a.Cancel()
		a.Owner.Expired()
		n++
	}
	return n
}

// expired returns one that has waited since before a time, nil if there is none.
func (p *Pool) expired(before int64) *Allocation {
	for q := range p.waiting.All() {
		for _, l := range []*list.List[Allocation]{&q.urgent, &q.waiting} {
			if a := l.First(); a != nil && a.since < before {
				return a
			}
		}
	}
	return nil
}

// Shortage is what a flow has waited for: memory of Namespace, if that has too much, and otherwise
// any that Host, which may be a network, or one with more has.
type Shortage struct{ Host, Namespace *Share }

// Needs reports whether memory of flow f would help.
func (s Shortage) Needs(f *Flow) bool {
	return s.Namespace == nil || f != nil && f.Namespace == s.Namespace
}

// HoldPart is the part of the longest wait for memory after which those that hold some without
// progress lose it, so that the wait ends in time.
const HoldPart = 4

// Shortages returns what flows have waited for since before a time.
func (p *Pool) Shortages(before int64) iter.Seq[Shortage] {
	return func(yield func(Shortage) bool) {
		for q := range p.waiting.All() {
			a, urgent := q.urgent.First(), true
			if a == nil {
				a, urgent = q.waiting.First(), false
			}
			s := Shortage{Host: q.flow.holder(p.kind, urgent)}
			if s.Host == nil {
				s.Host = &Share{}
			}
			if p.hostWithin(q, a.size, urgent) && !p.namespaceWithin(q, a.size, urgent) {
				s.Namespace = q.flow.Namespace
			}
			if a.since < before && !yield(s) {
				return
			}
		}
	}
}

// HoldLimit returns how long memory of flow f may be held without progress while s lasts, in the
// unit of limit, the longest wait for memory: a HoldPart of it if its host has more than the one
// that waits, and all but that if it is the same, whose network may be interrupted. 0: there is no
// limit.
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
