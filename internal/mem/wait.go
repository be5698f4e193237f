package mem

import "github.com/nvmf-target/nvmf-target/internal/list"

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
	a.list = &q.urgent
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
}

// Waiting says whether a waits for memory.
func (a *Allocation) Waiting() bool { return a.node.Listed() }

// next returns the first that can be served, nil if there is none. Flows take turns.
func (p *Pool) next() *Allocation {
	p.short = false
	for q := range p.waiting.All() {
		if a := q.urgent.First(); a != nil && p.free(true) >= a.size && p.within(q, a.size, true) {
			return a
		}
		a := q.waiting.First()
		switch {
		case a == nil || p.short && !p.isLittle(q, a.size):
		case p.free(false) >= a.size && p.within(q, a.size, false):
			return a
		case q.flow.Host == nil || q.flow.Host.used[p.kind] == 0 && !p.hostWithin(q, a.size, false):
			p.short = true
		}
	}
	return nil
}

// CanServe says whether Serve would grant something.
func (p *Pool) CanServe() bool { return !p.waiting.Empty() && p.next() != nil }

// Serve grants memory to waiters while there is enough, and returns how many got it.
func (p *Pool) Serve() (n int) {
	if p.waiting.Empty() {
		return 0
	}
	for a := p.next(); a != nil; a = p.next() {
		q := a.queue
		a.Cancel()
		if !q.empty() { // the next turn is another's
			p.waiting.Remove(&q.node)
			p.waiting.Push(q, &q.node)
		}
		p.take(a, q, a.size)
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

// Shortage returns the share of a host that has waited since before a time for memory that other
// allocations have, of the same host or of others, nil if there is none. What waits because a
// namespace has too much is not meant.
func (p *Pool) Shortage(before int64) *Share {
	for q := range p.waiting.All() {
		a, urgent := q.urgent.First(), true
		if a == nil {
			a, urgent = q.waiting.First(), false
		}
		if a.since >= before || p.hostWithin(q, a.size, urgent) && p.free(urgent) >= a.size {
			continue
		}
		if q.flow.Host == nil {
			return &Share{}
		}
		return q.flow.Host
	}
	return nil
}

// Close unmaps the memory; see Arena.Close.
func (p *Pool) Close() error { return p.arena.Close() }
