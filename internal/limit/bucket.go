// Package limit has rates that reactors share. Each flow on a reactor leases part of a Bucket,
// about as much as it uses within a millisecond, and spends that without touching what others use:
// only a new lease is an atomic operation on shared memory, and only Join and Leave take a lock.
//
// A limit that several hosts reach is shared out equally among those that wait for it, whatever
// reactors they are on; what they leave is anybody's.
package limit

import (
	"sync/atomic"
	"time"
)

const (
	// sliceTime is how long a lease lasts a flow that uses all of the rate, in nanoseconds.
	sliceTime = int64(time.Millisecond)
	// leaseTime is how long a lease may be used, in nanoseconds. What is left then goes back.
	leaseTime = 10 * sliceTime
	// MinWait is the shortest time in nanoseconds after which it is worth to ask again.
	MinWait = sliceTime
)

// Bucket is a token bucket: it fills at a rate, and holds what comes in the time of its burst. What
// is spent beyond that is a debt, until whose end nothing is leased. Rate and burst do not change.
type Bucket struct {
	rate  int64 // tokens per second
	burst int64 // nanoseconds
	slice int64 // the most tokens in a lease, unless one command needs more
	// spent is the time at which all that was leased will have come in: a time in the future is a
	// debt. The bucket is full if it is a burst or more ago.
	spent atomic.Int64
	hosts hosts
	old   *Bucket // that it replaces, until the first Join; guarded by hosts.mu
}

// NewBucket makes a bucket that replaces old, whose debt it takes over; nil: it is full. rate is in
// tokens per second, at least 1, and burst is not 0.
func NewBucket(rate int64, burst time.Duration, old *Bucket) *Bucket {
	b := &Bucket{rate: rate, burst: int64(burst), old: old}
	b.slice = max(rate/(int64(time.Second)/sliceTime), 1)
	if old != nil {
		old.hosts.mu.Lock()
		defer old.hosts.mu.Unlock()
		if old.old != nil { // nobody has used old
			b.old = old.old
		}
	}
	return b
}

// inherit takes over the debt of the bucket that b replaces. The caller holds hosts.mu.
func (b *Bucket) inherit(now int64) {
	if b.old == nil {
		return
	}
	debt := b.old.debt(now)
	if debt > 0 {
		debt = int64(float64(debt) * float64(b.old.rate) / float64(b.rate))
	}
	b.spent.Store(now + debt)
	b.old = nil
}

// timeOf is how long n tokens take to come in, in nanoseconds.
func (b *Bucket) timeOf(n int64) int64 {
	return int64(float64(n) * float64(time.Second) / float64(b.rate))
}

// debt is how long it takes until the bucket has no debt, 0 or less if it has none.
func (b *Bucket) debt(now int64) int64 { return b.spent.Load() - now }

// lease takes tokens that come in within t nanoseconds, if there is no debt. Otherwise it returns
// how long that will last.
func (b *Bucket) lease(t, now int64) (wait int64) {
	for {
		spent := b.spent.Load()
		from := max(spent, now-b.burst)
		if from > now {
			return from - now
		}
		if b.spent.CompareAndSwap(spent, from+t) {
			return 0
		}
	}
}

// Lease is what one flow of a host has of a bucket. It belongs to the reactor of the flow.
type Lease struct {
	b      *Bucket
	host   *host
	turn   turn  // among the flows of the host
	tokens int64 // left of the last lease
	since  int64 // when that was
	size   int64 // of the next one, unless a command needs more
	waits  bool  // the last call of Ready refused
}

// Ready reports whether n tokens can be spent: if it returns 0. Otherwise that many nanoseconds
// from now it is worth to ask again, and until then the flow counts as one that waits. now is the
// time of the reactors.
func (l *Lease) Ready(n, now int64) (wait int64) {
	if n == 0 || n <= l.tokens && now-l.since < leaseTime {
		return 0
	}
	if now-l.since >= leaseTime {
		l.Return(now)
	}
	hosts, flows := &l.b.hosts.turns, &l.host.flows
	if !l.waits {
		l.host.turn.enter(hosts, now)
		l.turn.enter(flows, now)
	}
	size := l.size
	switch age := now - l.since; {
	case age < sliceTime:
		size = min(2*max(size, n), l.b.slice)
	case age > 2*sliceTime:
		size /= 2
	}
	more := max(n-l.tokens, size)
	t := l.b.timeOf(more)
	if wait = l.b.debt(now); wait <= 0 {
		if l.host.turn.first(hosts, now) && l.turn.first(flows, now) {
			wait = l.b.lease(t, now)
		} else {
			wait = MinWait
		}
	}
	if wait > 0 {
		wait = max(wait, MinWait)
		l.waits = true
		l.host.turn.wait(now + wait)
		l.turn.wait(now + wait)
		return wait
	}
	l.host.turn.use(hosts, t, now, l.waits)
	l.turn.use(flows, t, now, l.waits)
	l.waits = false
	l.tokens, l.since, l.size = l.tokens+more, now, size
	return 0
}

// Spend spends tokens for which Ready has returned 0.
func (l *Lease) Spend(n int64) { l.tokens -= n }

// Return gives back what has not been spent, unless the bucket has been filled again since.
func (l *Lease) Return(now int64) {
	if l.tokens > 0 && now-l.since < l.b.burst {
		t := l.b.timeOf(l.tokens)
		l.b.spent.Add(-t)
		l.host.turn.used.Add(-t)
		l.turn.used.Add(-t)
	}
	l.tokens = 0
}
