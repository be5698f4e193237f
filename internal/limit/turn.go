package limit

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lead is how far one may be ahead of the others that wait, as the time in which the bucket
	// gets what it has used more: enough for reactors that look at their timers late.
	lead = int64(20 * time.Millisecond)
	// grace is how much later than it said one that waits may ask again.
	grace = int64(10 * time.Millisecond)
)

// turns shares a bucket out among those who use it, as start-time fair queueing does: who has used
// least goes first. What counts as least is never below what one used that was not kept waiting, so
// nobody saves up turns.
type turns struct {
	list   atomic.Pointer[[]*turn] // immutable
	passed atomic.Int64            // used, of the last one to go, before that
	// least is the lowest used of those that wait, as it was at leastAt.
	least, leastAt atomic.Int64
}

// turn is one of those who share.
type turn struct {
	used  atomic.Int64 // nanoseconds of the rate
	until atomic.Int64 // when it will ask again, at the latest, if it waits
}

func (t *turns) members() []*turn {
	if list := t.list.Load(); list != nil {
		return *list
	}
	return nil
}

// add and remove change the list. The caller holds a lock.
func (t *turns) add(m *turn) {
	m.used.Store(t.passed.Load())
	list := append(slices.Clone(t.members()), m)
	t.list.Store(&list)
}

func (t *turns) remove(m *turn) {
	list := slices.DeleteFunc(slices.Clone(t.members()), func(o *turn) bool { return o == m })
	t.list.Store(&list)
	t.leastAt.Store(0)
}

// lowest is the lowest used of those that wait, at most a slice old; there are many where many
// hosts wait.
func (t *turns) lowest(now int64) int64 {
	if at := t.leastAt.Load(); at > 0 && now-at < sliceTime {
		return t.least.Load()
	}
	least := int64(math.MaxInt64)
	for _, m := range t.members() {
		if m.until.Load() > now {
			least = min(least, m.used.Load())
		}
	}
	t.least.Store(least)
	t.leastAt.Store(now)
	return least
}

// enter is called when one asks: unless it waits already it comes in where the others are.
func (m *turn) enter(t *turns, now int64) {
	if m.until.Load() <= now {
		raise(&m.used, t.passed.Load())
	}
}

// first reports whether it may go now, and not one that waits.
func (m *turn) first(t *turns, now int64) bool { return m.used.Load()-lead <= t.lowest(now) }

// wait notes that it asks again at a time.
func (m *turn) wait(at int64) { m.until.Store(at + grace) }

// use notes that it went, and what it used. If it has waited, it may have more that does: it keeps
// its place for a moment.
func (m *turn) use(t *turns, n, now int64, waited bool) {
	raise(&t.passed, m.used.Add(n)-n)
	if waited {
		m.wait(now)
	}
}

// raise sets a to v if it is below.
func raise(a *atomic.Int64, v int64) {
	for {
		old := a.Load()
		if old >= v || a.CompareAndSwap(old, v) {
			return
		}
	}
}

// hosts are the hosts that use a bucket.
type hosts struct {
	turns
	mu  sync.Mutex
	all map[any]*host // by what Join was called with
}

// host is one of them, with its flows on all reactors.
type host struct {
	key   any
	turn  turn
	flows turns
}

// Join makes a Lease for a flow of a host, on the reactor of the flow, whose time is now. Hosts
// with the same key, which is comparable, take turns as one.
func (b *Bucket) Join(key any, now int64) *Lease {
	b.hosts.mu.Lock()
	defer b.hosts.mu.Unlock()
	b.inherit(now)
	h := b.hosts.all[key]
	if h == nil {
		h = &host{key: key}
		if b.hosts.all == nil {
			b.hosts.all = map[any]*host{}
		}
		b.hosts.all[key] = h
		b.hosts.add(&h.turn)
	}
	l := &Lease{b: b, host: h}
	h.flows.add(&l.turn)
	return l
}

// Leave ends the use of the lease, what is left of it goes back. The host is forgotten with its
// last one.
func (l *Lease) Leave(now int64) {
	l.Return(now)
	b := &l.b.hosts
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.host.flows.remove(&l.turn); len(l.host.flows.members()) == 0 {
		b.remove(&l.host.turn)
		delete(b.all, l.host.key)
	}
}

// Users is the number of leases that have not been left.
func (b *Bucket) Users() (n int) {
	b.hosts.mu.Lock()
	defer b.hosts.mu.Unlock()
	for _, h := range b.hosts.all {
		n += len(h.flows.members())
	}
	return n
}
