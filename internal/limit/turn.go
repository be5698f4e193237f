package limit

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lead is the advantage that a member may have over the waiting ones, in nanoseconds of the
	// rate. It is enough for reactors with late timers.
	lead = int64(20 * time.Millisecond)
	// grace is the delay allowed for a waiting member that asks again.
	grace = int64(10 * time.Millisecond)
	// lookMost is the number of members that a search for the lowest use looks at in a call. A
	// search among twenty times as many ends within lead.
	lookMost = 1024
)

// turns shares out a bucket by start-time fair queueing: the member with the least use goes first.
// One that comes back starts at the use of the last one that went, and saves up no turns.
type turns struct {
	list   atomic.Pointer[[]*turn] // immutable
	passed atomic.Int64            // use of the last member to go, before it went
	// least is the lowest use of the waiting members by the search that ended at the time leastAt.
	least, leastAt atomic.Int64
	search         struct { // the next one, of any reactor
		sync.Mutex
		at    int // the next member
		least int64
	}
}

// turn is a member.
type turn struct {
	used  atomic.Int64 // nanoseconds of the rate
	until atomic.Int64 // time by which a waiting member asks again
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

// lowest returns the lowest use of waiting members, by the last search among all of them. If that
// ended more than a slice ago, lowest goes on with the next one.
func (t *turns) lowest(now int64) int64 {
	if at := t.leastAt.Load(); at > 0 && now-at < sliceTime || !t.search.TryLock() {
		return t.least.Load()
	}
	defer t.search.Unlock()
	s, all := &t.search, t.members()
	if s.at == 0 {
		s.least = math.MaxInt64
	}
	first := min(s.at, len(all))
	s.at = min(first+lookMost, len(all))
	for _, m := range all[first:s.at] {
		if m.until.Load() > now {
			s.least = min(s.least, m.used.Load())
		}
	}
	if s.at == len(all) {
		s.at = 0
		t.least.Store(s.least)
		t.leastAt.Store(now)
	}
	return t.least.Load()
}

// enter is called when a member asks. Unless it waits, it joins at the use of the others.
func (m *turn) enter(t *turns, now int64) {
	if m.until.Load() <= now {
		raise(&m.used, t.passed.Load())
	}
}

// first reports whether the member may go now, before the waiting ones.
func (m *turn) first(t *turns, now int64) bool { return m.used.Load()-lead <= t.lowest(now) }

// wait records that the member asks again at a time.
func (m *turn) wait(at int64) { m.until.Store(at + grace) }

// use records that the member went, and its use. A member that had waited may have more commands,
// so it counts as waiting a moment longer.
func (m *turn) use(t *turns, n, now int64, waited bool) {
	raise(&t.passed, m.used.Add(n)-n)
	if waited {
		m.wait(now)
	}
}

// raise sets a to v if it is lower.
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
	all map[any]*host // by the key of Join
}

// host has the flows of one host on all reactors.
type host struct {
	key   any
	turn  turn
	flows turns
}

// Join makes a Lease for a flow of a host, on the reactor of the flow; now is the time of that
// reactor. Flows with the same key, which is comparable, share one turn as a host.
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

// Leave ends the lease and gives back its rest. The last lease of a host removes the host.
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

// Users returns the number of leases in use.
func (b *Bucket) Users() (n int) {
	b.hosts.mu.Lock()
	defer b.hosts.mu.Unlock()
	for _, h := range b.hosts.all {
		n += len(h.flows.members())
	}
	return n
}
