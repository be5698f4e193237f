// Package limit has rates that reactors share. Each flow on a reactor leases part of a Bucket,
// about as much as it uses within a millisecond, and spends its lease locally. Only a new lease is
// an atomic operation on shared memory, and only Join and Leave take a lock.
//
// Waiting hosts share a limit equally, on any reactors. The rest is free for everybody.
package limit

import (
	"sync/atomic"
	"time"
)

const (
	// sliceTime is the duration of a lease for a flow that uses the full rate, in nanoseconds.
	sliceTime = int64(time.Millisecond)
	// leaseTime is the lifetime of a lease, in nanoseconds. The unused rest then goes back.
	leaseTime = 10 * sliceTime
	// MinWait is the shortest wait in nanoseconds before another call of Ready is worthwhile.
	MinWait = sliceTime
)

// Bucket is a token bucket. It fills at a rate and holds the tokens of its burst time. Spending
// beyond that is a debt; nothing is leased until the debt has ended. Rate and burst do not change.
type Bucket struct {
	rate  int64 // tokens per second
	burst int64 // nanoseconds
	slice int64 // the most tokens in a lease, unless one command needs more
	// spent is the time at which the bucket has received all leased tokens. A time in the future is
	// a debt. The bucket is full if spent is a burst or more ago.
	spent atomic.Int64
	hosts hosts
	old   *Bucket // replaced by this one, until the first Join; guarded by hosts.mu
}

// NewBucket makes a bucket that replaces old and takes over its debt. If old is nil, the bucket is
// full. rate is in tokens per second, at least 1, and burst is not 0.
func NewBucket(rate int64, burst time.Duration, old *Bucket) *Bucket {
	b := &Bucket{rate: rate, burst: int64(burst), old: old}
	b.slice = max(rate/(int64(time.Second)/sliceTime), 1)
	if old != nil {
		old.hosts.mu.Lock()
		defer old.hosts.mu.Unlock()
		if old.old != nil { // old was never used
			b.old = old.old
		}
	}
	return b
}

// inherit takes over the debt of the replaced bucket. The caller holds hosts.mu.
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

// timeOf returns the nanoseconds in which n tokens come in.
func (b *Bucket) timeOf(n int64) int64 {
	return int64(float64(n) * float64(time.Second) / float64(b.rate))
}

// debt returns the nanoseconds until the debt ends, 0 or less if there is none.
func (b *Bucket) debt(now int64) int64 { return b.spent.Load() - now }

// lease takes the tokens of t nanoseconds, or returns the time until the debt ends.
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

// Lease is the share of one flow of a host in a bucket. It belongs to the reactor of the flow.
type Lease struct {
	b      *Bucket
	host   *host
	turn   turn  // among the flows of the host
	tokens int64 // left of the last lease
	since  int64 // the time of the last lease
	size   int64 // of the next one, unless a command needs more
	waits  bool  // the last call of Ready refused
}

// Ready returns 0 if n tokens can be spent. Otherwise it returns the nanoseconds after which to ask
// again, and until then the flow counts as waiting. now is the time of the reactors.
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

// Spend spends n tokens after Ready(n) has returned 0.
func (l *Lease) Spend(n int64) { l.tokens -= n }

// Return gives back unspent tokens, unless the bucket has filled up since.
func (l *Lease) Return(now int64) {
	if l.tokens > 0 && now-l.since < l.b.burst {
		t := l.b.timeOf(l.tokens)
		l.b.spent.Add(-t)
		l.host.turn.used.Add(-t)
		l.turn.used.Add(-t)
	}
	l.tokens = 0
}
