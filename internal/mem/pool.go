package mem

import "github.com/nvmf-target/nvmf-target/internal/list"

// Pool is an arena and the queue of those that wait for its memory, first come first served. The
// data memory of a reactor is one Pool, shared by everything on that reactor: memory that one frees
// may serve another that waits. It takes no locks; only the reactor uses it.
//
// The last part of the arena is a reserve for data that has to be received before anything else can
// proceed, such as in-capsule data that blocks the byte stream behind it, which may have what
// others wait for.
type Pool struct {
	arena   *Arena
	most    int // bytes that Alloc and Wait may be asked for
	reserve int
	waiting list.List[Waiter]
	urgent  list.List[Waiter] // of WaitReserve
}

// Waiter is a place in the queue of a Pool. It belongs to the one that waits, who makes it once,
// with Owner set.
type Waiter struct {
	// Owner is called when the wait ends.
	Owner WaitOwner
	// Segs is the memory, from Granted on. Its array is reused.
	Segs []Segment

	node  list.Node[Waiter]
	queue *list.List[Waiter] // that it is in
	size  int
	since int64
}

// WaitOwner waits for memory. Its methods may use the pool.
type WaitOwner interface {
	// Granted is called when Segs of the Waiter has the memory that was asked for.
	Granted()
	// Expired is called when the wait has taken too long. The Waiter has left the queue.
	Expired()
}

// NewPool makes a pool of an arena, which is not used otherwise any more. reserve is in bytes and
// is rounded up to BlockMin.
func NewPool(a *Arena, reserve int) *Pool {
	reserve = (reserve + BlockMin - 1) &^ (BlockMin - 1)
	return &Pool{arena: a, most: len(a.base) - reserve, reserve: reserve}
}

// Region returns the memory that the pool hands out, for registration.
func (p *Pool) Region() *Region { return p.arena.Region() }

// Max returns the most bytes that Alloc and Wait may be asked for: more is never free.
func (p *Pool) Max() int { return p.most }

// Available returns how many bytes are free beyond the reserve, negative if part of that is used.
func (p *Pool) Available() int { return p.arena.Available() - p.reserve }

// Reserve returns how many bytes only AllocReserve hands out.
func (p *Pool) Reserve() int { return p.reserve }

// HasWaiters says whether a Waiter waits.
func (p *Pool) HasWaiters() bool { return !p.waiting.Empty() || !p.urgent.Empty() }

// Alloc appends n bytes to dst, in as few segments as possible, and returns the extended slice. It
// returns dst and false if there are not so many, or if others wait: the caller then waits, too, or
// does without.
func (p *Pool) Alloc(dst []Segment, n int) ([]Segment, bool) {
	if p.HasWaiters() || p.Available() < n {
		return dst, false
	}
	return p.arena.Alloc(dst, n)
}

// AllocReserve is an Alloc that may use the reserve and does not queue behind others.
func (p *Pool) AllocReserve(dst []Segment, n int) ([]Segment, bool) { return p.arena.Alloc(dst, n) }

// Free returns memory to the pool. Those that wait get it at the next Serve.
func (p *Pool) Free(segs []Segment) { p.arena.Free(segs) }

// Wait puts w, which is not waiting, at the end of the queue for n bytes. now is the time that
// Expire compares with.
func (p *Pool) Wait(w *Waiter, n int, now int64) { p.wait(&p.waiting, w, n, now) }

// WaitReserve is Wait for memory that may come from the reserve, ahead of all that wait by Wait.
func (p *Pool) WaitReserve(w *Waiter, n int, now int64) { p.wait(&p.urgent, w, n, now) }

func (p *Pool) wait(q *list.List[Waiter], w *Waiter, n int, now int64) {
	w.queue, w.size, w.since, w.Segs = q, n, now, w.Segs[:0]
	q.Push(w, &w.node)
}

// Promote makes w wait as if by WaitReserve, among those by its age, if it waits by Wait.
func (p *Pool) Promote(w *Waiter) {
	if !w.Waiting() || w.queue == &p.urgent {
		return
	}
	p.Cancel(w)
	w.queue = &p.urgent
	p.urgent.Push(w, &w.node)
	for u := range p.urgent.All() {
		if u == w {
			break
		}
		if u.since > w.since {
			p.urgent.Remove(&u.node)
			p.urgent.Push(u, &u.node)
		}
	}
}

// Cancel removes w from the queue if it is there.
func (p *Pool) Cancel(w *Waiter) {
	if w.Waiting() {
		w.queue.Remove(&w.node)
	}
}

// Waiting says whether w is in the queue.
func (w *Waiter) Waiting() bool { return w.node.Listed() }

// next returns the first that can be served, nil if there is none.
func (p *Pool) next() *Waiter {
	if w := p.urgent.First(); w != nil && p.arena.Available() >= w.size {
		return w
	}
	if w := p.waiting.First(); w != nil && p.Available() >= w.size {
		return w
	}
	return nil
}

// CanServe says whether Serve would grant something.
func (p *Pool) CanServe() bool { return p.next() != nil }

// Serve grants memory to those that wait, as far as there is enough, and returns how many got it.
func (p *Pool) Serve() (n int) {
	for w := p.next(); w != nil; w = p.next() {
		p.Cancel(w)
		w.Segs, _ = p.arena.Alloc(w.Segs, w.size) // there is enough
		w.Owner.Granted()
		n++
	}
	return n
}

// Expire removes those from the queue that have waited since before a time, and returns how many.
func (p *Pool) Expire(before int64) (n int) {
	for _, q := range []*list.List[Waiter]{&p.urgent, &p.waiting} {
		for w := q.First(); w != nil && w.since < before; w = q.First() {
			p.Cancel(w)
			w.Owner.Expired()
			n++
		}
	}
	return n
}

// Close unmaps the memory; see Arena.Close.
func (p *Pool) Close() error { return p.arena.Close() }
