package mem

import "github.com/nvmf-target/nvmf-target/internal/list"

// Pool is an arena and the queue of those who wait for its memory, first come first served. The
// data memory of a reactor is one Pool, shared by all that lives there: whoever waits is served,
// whoever frees. It takes no locks: reactor only.
//
// The last part of the arena is a reserve for data that must be taken in before anything else can
// go on, such as data in a capsule that blocks the byte stream behind it, where what others wait
// for may come.
type Pool struct {
	arena   *Arena
	most    int // bytes that Alloc and Wait may be asked for
	reserve int
	waiting list.List[Waiter]
	urgent  list.List[Waiter] // those who may have the reserve
}

// Waiter is a place in the queue of a Pool. Whoever waits owns it and makes it once, with Owner
// set.
type Waiter struct {
	// Owner is told what came of the wait.
	Owner WaitOwner
	// Segs is the memory, from Granted on; its array is reused.
	Segs []Segment

	node  list.Node[Waiter]
	queue *list.List[Waiter] // that it is in
	size  int
	since int64
}

// WaitOwner is who waits for memory. It may use the pool from within its methods.
type WaitOwner interface {
	// Granted says that Segs of the owner's Waiter has the memory that was asked for.
	Granted()
	// Expired says that the wait took too long: the Waiter has left the queue, and Segs is empty.
	Expired()
}

// NewPool makes a pool of an arena, which nobody else allocates from any more. reserve is in bytes,
// rounded up to BlockMin.
func NewPool(a *Arena, reserve int) *Pool {
	reserve = (reserve + BlockMin - 1) &^ (BlockMin - 1)
	return &Pool{arena: a, most: len(a.base) - reserve, reserve: reserve}
}

// Region is the memory that the pool hands out, for registration.
func (p *Pool) Region() *Region { return p.arena.Region() }

// Max is the most that Alloc and Wait may be asked for, in bytes: more will never be free.
func (p *Pool) Max() int { return p.most }

// Available is how many bytes are free beyond the reserve; negative if some of that is used.
func (p *Pool) Available() int { return p.arena.Available() - p.reserve }

// Reserve is how many bytes of the arena only AllocReserve hands out.
func (p *Pool) Reserve() int { return p.reserve }

// Crowded says whether somebody waits.
func (p *Pool) Crowded() bool { return !p.waiting.Empty() || !p.urgent.Empty() }

// Alloc appends n bytes to dst, in as few segments as there are, and returns the extended slice. It
// returns dst and false if so much is not free or if others wait: the caller then waits, too, or
// does without.
func (p *Pool) Alloc(dst []Segment, n int) ([]Segment, bool) {
	if p.Crowded() || p.Available() < n {
		return dst, false
	}
	return p.arena.Alloc(dst, n)
}

// AllocReserve is Alloc that may use the reserve and goes ahead of those who wait.
func (p *Pool) AllocReserve(dst []Segment, n int) ([]Segment, bool) { return p.arena.Alloc(dst, n) }

// Free takes memory back. Those who wait get it at the next Serve.
func (p *Pool) Free(segs []Segment) { p.arena.Free(segs) }

// Wait puts w, which is not waiting, at the end of the queue for n bytes. now is the time that
// Expire compares with.
func (p *Pool) Wait(w *Waiter, n int, now int64) { p.wait(&p.waiting, w, n, now) }

// WaitReserve is Wait for memory that may be that of the reserve, ahead of those who wait for other
// memory.
func (p *Pool) WaitReserve(w *Waiter, n int, now int64) { p.wait(&p.urgent, w, n, now) }

func (p *Pool) wait(q *list.List[Waiter], w *Waiter, n int, now int64) {
	w.queue, w.size, w.since, w.Segs = q, n, now, w.Segs[:0]
	q.Push(w, &w.node)
}

// Cancel takes w out of the queue, if it is there.
func (p *Pool) Cancel(w *Waiter) {
	if w.Waiting() {
		w.queue.Remove(&w.node)
	}
}

// Waiting says whether w is in the queue.
func (w *Waiter) Waiting() bool { return w.node.Listed() }

// next is the first who can be served, nil if there is none.
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

// Serve grants memory to those who wait, as far as there is some, and returns how many got it.
func (p *Pool) Serve() (n int) {
	for w := p.next(); w != nil; w = p.next() {
		p.Cancel(w)
		w.Segs, _ = p.arena.Alloc(w.Segs, w.size) // there is enough
		w.Owner.Granted()
		n++
	}
	return n
}

// Expire takes those out of the queue who have waited since before a moment, and returns how many.
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
