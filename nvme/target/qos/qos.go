// Package qos bounds the commands and bytes per second of hosts, with the Limits of a host, a
// subsystem or a namespace (ADR 0026). A Limiter is shared by all reactors. A Flow has the parts of
// the limiters that the commands of one host for one namespace have on one reactor, and a Gate the
// commands of the reactor that wait.
//
// It imports the buckets of internal/limit, and the facts of internal/observed.
package qos

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/limit"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// Limits bound commands and bytes per second. The zero value has no limit.
type Limits struct {
	// IOPS bounds the commands per second that read or change blocks, 0: no bound. A Flush does not
	// count.
	IOPS int64
	// Bandwidth bounds the bytes per second of reads, writes and Write Zeroes; 0: no bound.
	Bandwidth int64
	// Burst bounds the amount that passes at once after a pause: as much as the limits allow in
	// this time. 0 is DefaultBurst. A larger command passes, and is made up for afterwards.
	Burst time.Duration
}

// The bounds of Limits.Burst. Reactors look at their timers some milliseconds late, and must find
// the amount that came in meanwhile.
const (
	MinBurst     = 10 * time.Millisecond
	MaxBurst     = time.Minute
	DefaultBurst = 100 * time.Millisecond
)

// Object is a host (HostNQN), a subsystem (SubNQN) or a namespace (SubNQN and NSID).
type Object struct {
	HostNQN, SubNQN string
	NSID            uint32
}

// Info describes the limits of an object at one moment.
type Info struct {
	Object
	observed.Limits
}

// Limiter is the Limits of an object, which all reactors share. It does not change: other limits
// make another one, with the same counters.
type Limiter struct {
	Limits
	ios, bytes *limit.Bucket // nil: no limit
	waits      *counters
}

// counters count commands that have waited.
type counters struct{ commands, nanoseconds atomic.Uint64 }

// NewLimiter makes the limiter for l in place of old, which may be nil: the same one if nothing
// changes, and nil if there is no limit.
func NewLimiter(l Limits, old *Limiter) *Limiter {
	switch {
	case l.IOPS == 0 && l.Bandwidth == 0:
		return nil
	case old != nil && old.Limits == l:
		return old
	case old == nil:
		old = &Limiter{waits: new(counters)}
	}
	n := &Limiter{Limits: l, waits: old.waits}
	n.ios = newBucket(l.IOPS, l.Burst, old.ios)
	n.bytes = newBucket(l.Bandwidth, l.Burst, old.bytes)
	return n
}

func newBucket(rate int64, burst time.Duration, old *limit.Bucket) *limit.Bucket {
	if rate == 0 {
		return nil
	}
	return limit.NewBucket(rate, cmp.Or(burst, DefaultBurst), old)
}

// Describe describes the limiter; nil if there is none.
func (l *Limiter) Describe() *observed.Limits {
	if l == nil {
		return nil
	}
	return &observed.Limits{
		IOPS: l.IOPS, Bandwidth: l.Bandwidth, BurstSeconds: l.Burst.Seconds(),
		Waits:       l.waits.commands.Load(),
		WaitSeconds: time.Duration(l.waits.nanoseconds.Load()).Seconds(),
	}
}

// waited counts commands that have waited, in all so many nanoseconds.
func (l *Limiter) waited(commands int, nanoseconds int64) {
	l.waits.commands.Add(uint64(commands))
	l.waits.nanoseconds.Add(uint64(nanoseconds))
}

// Users returns the number of owners that the limit on commands is shared out by now; it has one.
func (l *Limiter) Users() int { return l.ios.Users() }

// Limiters are the limiters of a host, a subsystem and a namespace; nil: no limit.
type Limiters [3]*Limiter

// lease is the lease of a flow on a bucket of a limiter.
type lease struct {
	*limit.Lease
	of    *Limiter
	bytes bool
}

// cost returns the amount that a command takes of the bucket. data is in bytes.
func (l *lease) cost(data int64) int64 {
	if l.bytes {
		return data
	}
	return 1
}

// Link makes a flow use these limiters. Their buckets are shared out by owner.
func (f *Flow) Link(to Limiters, owner any, now int64) {
	if to == f.of {
		return
	}
	f.Unlink(now)
	f.of = to
	for _, of := range to {
		if of == nil {
			continue
		}
		if of.ios != nil {
			f.leases = append(f.leases, lease{of.ios.Join(owner, now), of, false})
		}
		if of.bytes != nil {
			f.leases = append(f.leases, lease{of.bytes.Join(owner, now), of, true})
		}
	}
}

// Limited reports whether there is a limit.
func (f *Flow) Limited() bool { return len(f.leases) > 0 }

// Unlink ends the use of limiters.
func (f *Flow) Unlink(now int64) {
	for _, l := range f.leases {
		l.Leave(now)
	}
	f.leases, f.of = nil, Limiters{}
}

// Take takes the cost of a command, which does not wait otherwise, and reports whether the limits
// allow it. data is in bytes.
func (f *Flow) Take(data, now int64) bool {
	if !f.waiting.Empty() {
		return false
	}
	_, wait := f.take(data, now)
	return wait == 0
}

// take takes the cost of a command from all limits, or returns the limiter at which the command
// waits, and the time. That one is asked first the next time: the leases of the others are for
// commands that do not wait for it.
func (f *Flow) take(data, now int64) (at *Limiter, wait int64) {
	for i := range f.leases {
		e := &f.leases[i]
		if wait := e.Ready(e.cost(data), now); wait > 0 {
			for j := range i {
				f.leases[j].Return(now)
			}
			at = e.of
			f.leases[0], f.leases[i] = f.leases[i], f.leases[0]
			return at, wait
		}
	}
	for i := range f.leases {
		e := &f.leases[i]
		e.Spend(e.cost(data))
	}
	return nil, 0
}
