package target

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/limit"
)

// Limits bound what hosts may do; see ADR 0026. The zero value is none.
type Limits struct {
	// IOPS is how many commands per second may read or change blocks, 0 any number. A Flush does
	// not count.
	IOPS int64
	// Bandwidth is how many bytes per second reads and writes may move, and Write Zeroes zero, 0
	// any number.
	Bandwidth int64
	// Burst says how much may come at once after a pause: as much as the limits allow in this time.
	// 0 is DefaultBurst. What is larger than that passes, and is made up for afterwards.
	Burst time.Duration
}

// The bounds of Limits.Burst. Reactors look at their timers some milliseconds late, and must find
// what came in meanwhile.
const (
	MinBurst     = 10 * time.Millisecond
	MaxBurst     = time.Minute
	DefaultBurst = 100 * time.Millisecond
)

// LimitedObject is a host (HostNQN), a subsystem (SubNQN) or a namespace (SubNQN and NSID).
type LimitedObject struct {
	HostNQN, SubNQN string
	NSID            uint32
}

// LimitInfo describes the limits of an object at one moment.
type LimitInfo struct {
	LimitedObject
	Limits
	// Waits is how many commands have waited at the limit, and WaitTime how long, in all.
	Waits    uint64
	WaitTime time.Duration
}

// limiter is the Limits of a host, a subsystem or a namespace, which all reactors share. Its fields
// do not change: other limits make another one, with the same counters.
type limiter struct {
	Limits
	ios, bytes *limit.Bucket // nil: no limit
	waits      *limitCounters
}

// limitCounters count what has waited.
type limitCounters struct{ commands, nanoseconds atomic.Uint64 }

// newLimiter makes the limiter for l in place of old, which may be nil: the same one if nothing
// changes, and nil if there is no limit.
func newLimiter(l Limits, old *limiter) *limiter {
	switch {
	case l.IOPS == 0 && l.Bandwidth == 0:
		return nil
	case old != nil && old.Limits == l:
		return old
	case old == nil:
		old = &limiter{waits: new(limitCounters)}
	}
	n := &limiter{Limits: l, waits: old.waits}
	n.ios = newBucket(l.IOPS, l.Burst, old.ios)
	n.bytes = newBucket(l.Bandwidth, l.Burst, old.bytes)
	return n
}

func newBucket(rate int64, burst time.Duration, old *limit.Bucket) *limit.Bucket {
	if rate == 0 {
		return nil
	}
	if burst == 0 {
		burst = DefaultBurst
	}
	return limit.NewBucket(rate, burst, old)
}

func (l *limiter) info(of LimitedObject) LimitInfo {
	return LimitInfo{
		of, l.Limits, l.waits.commands.Load(), time.Duration(l.waits.nanoseconds.Load()),
	}
}

// SetHostLimits sets the limits of a host for all subsystems together, whether it is connected or
// not; without any the host has none. Commands that wait look at them at once.
func (t *Target) SetHostLimits(nqn string, l Limits) {
	t.mu.Lock()
	defer t.mu.Unlock()
	hosts := maps.Clone(*t.hosts.Load())
	n := newLimiter(l, hosts[nqn])
	if n == hosts[nqn] {
		return
	}
	if hosts[nqn] = n; n == nil {
		delete(hosts, nqn)
	}
	t.hosts.Store(&hosts)
	relink(t.handlers)
}

// Limits lists the limits that there are, in the order of host, subsystem and NSID.
func (t *Target) Limits() []LimitInfo {
	var list []LimitInfo
	add := func(l *limiter, of LimitedObject) {
		if l != nil {
			list = append(list, l.info(of))
		}
	}
	for nqn, l := range *t.hosts.Load() {
		add(l, LimitedObject{HostNQN: nqn})
	}
	for _, s := range *t.table.Load() {
		add(s.settings.Load().limiter, LimitedObject{SubNQN: s.nqn})
		for _, ns := range s.namespaces.Load().list {
			add(ns.cfg.Load().limiter, LimitedObject{SubNQN: s.nqn, NSID: ns.nsid})
		}
	}
	slices.SortFunc(list, func(a, b LimitInfo) int {
		return cmp.Or(strings.Compare(a.HostNQN, b.HostNQN), strings.Compare(a.SubNQN, b.SubNQN),
			cmp.Compare(a.NSID, b.NSID))
	})
	return list
}
