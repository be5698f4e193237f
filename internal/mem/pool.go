package mem

import "github.com/nvmf-target/nvmf-target/internal/list"

// Pool is an arena with memory shared out among hosts and namespaces, and a queue of waiters. The
// data memory of a reactor is one Pool, shared by all groups of that reactor: memory freed by one
// may serve a waiter of another. It takes no locks; only the reactor uses it.
//
// The last part of the arena is a reserve for data that must be received before anything else can
// proceed, such as in-capsule data. In-capsule data blocks the rest of the byte stream, and that
// stream may carry the event that frees the memory others wait for.
type Pool struct {
	arena    *Arena
	kind     poolKind
	most     int // limit of a request to Alloc and Wait
	reserve  int
	promised int
	orphaned int
	waiters  int
	noFlow   Flow // of allocations without a host
	waiting  list.List[flowQueue]
	flows    list.Set[flowQueue] // the waiting flows, as a Set
	// scan counts the searches for a waiter that can be served. short is the last search in which a
	// host without memory waited for more than is free. Only flows with little memory go ahead of
	// such a host, and of waiters that a share holds back in the current search; see Share.keeps.
	scan, short uint64
	// cursor is the next flow of the current search, nil if there is none.
	cursor *flowQueue
	// changed: something has changed since the current search began. If nothing has, nobody can be
	// served after it, as long as the number of available bytes stays searched.
	changed  bool
	searched int
	shortage int // index in flows of the last shortage looked at
}

// Allocation is memory of a Pool, or a place in its queue. Its owner embeds it and sets Owner
// before the first Wait; it is reused.
type Allocation struct {
	// Owner is called when a wait ends.
	Owner WaitOwner
	// Segs is the memory. Its array is reused.
	Segs []Segment

	pool    *Pool
	queue   *flowQueue
	charged int // bytes
	urgent  bool
	orphan  bool

	list  *list.List[Allocation] // the list in which it waits
	node  list.Node[Allocation]
	size  int
	since int64
}

// WaitOwner waits for memory. Its methods may use the pool.
type WaitOwner interface {
	// Granted is called when Segs of the Allocation has the requested memory.
	Granted()
	// Expired is called when the wait has taken too long. The Allocation has left the queue.
	Expired()
}

// NewPool makes a pool of an arena, which belongs to the pool then. reserve is in bytes, and is
// rounded up to BlockMin.
func NewPool(a *Arena, reserve int) *Pool {
	reserve = roundUp(reserve)
	return &Pool{arena: a, most: len(a.base) - reserve, reserve: reserve, scan: 2}
}

// NewStagingPool makes a pool for data in transit, with its own use by hosts and namespaces.
func NewStagingPool(a *Arena) *Pool {
	p := NewPool(a, 0)
	p.kind = stagingPool
	return p
}

func roundUp(n int) int { return (n + BlockMin - 1) &^ (BlockMin - 1) }

// Region returns the memory that the pool hands out, for registration.
func (p *Pool) Region() *Region { return p.arena.Region() }

// Max returns the limit in bytes of one allocation of f; more is never free.
func (p *Pool) Max(f *Flow) int {
	if f != nil && f.Host != nil && f.Host.Limit > 0 {
		return min(f.Host.Limit, p.most)
	}
	return p.most
}

// Available returns the free bytes beyond the reserve; negative if some of that is in use.
func (p *Pool) Available() int { return p.arena.Available() - p.reserve }

// Promised returns the number of bytes that are set aside at present.
func (p *Pool) Promised() int { return p.promised }

// PoolUsage describes the use of a pool at one moment, in bytes.
type PoolUsage struct {
	Size, Used int
	// Orphaned is the part of Used that was handed over and has not been freed since.
	Orphaned int
	// Waiters is the number of waiting allocations.
	Waiters int
}

// Usage returns the current use of the pool.
func (p *Pool) Usage() PoolUsage {
	size := len(p.arena.base)
	return PoolUsage{size, size - p.arena.Available(), p.orphaned, p.waiters}
}

// HasWaiters reports whether an Allocation waits.
func (p *Pool) HasWaiters() bool { return !p.waiting.Empty() }

// free returns the number of bytes that may be allocated now.
func (p *Pool) free(urgent bool) int {
	n := p.arena.Available() - p.promised
	if !urgent {
		n -= p.reserve
	}
	return n
}

// Alloc allocates n bytes for a flow in a.Segs, which is empty before, in as few segments as
// possible. It returns false if the shares of the flow do not allow that, if too little is free, or
// if the flow itself or one with less memory waits. The caller then waits, or does without.
func (p *Pool) Alloc(a *Allocation, f *Flow, n int) bool {
	q := p.queue(f)
	if !q.empty() || p.yields(q, n, p.complete()) || p.free(false) < n || !p.within(q, n, false) {
		return false
	}
	p.take(a, q, n, false)
	return true
}

// AllocReserve is an Alloc that may use the reserve.
func (p *Pool) AllocReserve(a *Allocation, f *Flow, n int) bool {
	q := p.queue(f)
	if !q.urgent.Empty() || p.free(true) < n || !p.within(q, n, true) {
		return false
	}
	p.take(a, q, n, true)
	return true
}

// Promise sets n bytes aside for a flow, or for nil if the flow is not known yet. It returns false
// if there is not enough.
func (p *Pool) Promise(f *Flow, n int) bool {
	n = roundUp(n)
	if p.free(true) < n || !p.within(p.queue(f), n, true) {
		return false
	}
	p.promised += n
	return true
}

// AllocPromised allocates memory that was set aside. It returns false if another allocation has
// used it meanwhile.
func (p *Pool) AllocPromised(a *Allocation, f *Flow, n int) bool {
	if p.arena.Available() < n {
		return false
	}
	p.promised -= roundUp(n)
	p.take(a, p.queue(f), n, true)
	return true
}

// EndPromises cancels the remaining promises.
func (p *Pool) EndPromises() {
	if p.promised > 0 {
		p.promised, p.changed = 0, true
	}
}

// take allocates n bytes, which are free.
func (p *Pool) take(a *Allocation, q *flowQueue, n int, urgent bool) {
	before := p.arena.Available()
	a.Segs, _ = p.arena.Alloc(a.Segs, n)
	a.pool, a.queue, a.charged, a.urgent = p, q, before-p.arena.Available(), urgent
	p.charge(a, 1)
	p.changed = true
}

// Of reports whether a has memory of p.
func (a *Allocation) Of(p *Pool) bool { return len(a.Segs) > 0 && a.pool == p }

// Free gives the memory back, if there is any. Waiters get it at the next Serve.
func (a *Allocation) Free() {
	if len(a.Segs) == 0 {
		return
	}
	p := a.pool
	p.changed = true
	p.arena.Free(a.Segs)
	if a.orphan {
		p.orphaned -= a.charged
		a.chargeHost(1) // it was uncharged when the memory was handed over
	}
	p.charge(a, -1)
	clear(a.Segs)
	a.Segs, a.charged = a.Segs[:0], 0
}

// HandOver takes memory that a device may still use from the Allocation when its command ends. free
// gives it back, once. Until then it counts for the namespace, not for the host.
func (a *Allocation) HandOver() (free func()) {
	if len(a.Segs) == 0 {
		return func() {}
	}
	o := &Allocation{
		pool: a.pool, queue: a.queue, Segs: a.Segs, charged: a.charged,
		urgent: a.urgent, orphan: true,
	}
	a.Segs, a.charged = nil, 0
	o.pool.orphaned += o.charged
	o.pool.changed = true
	o.chargeHost(-1)
	return o.Free
}
