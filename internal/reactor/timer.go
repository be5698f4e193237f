package reactor

import (
	"math"

	"github.com/nvmf-target/nvmf-target/internal/list"
)

// timer is one pending After.
type timer struct {
	fn    func()
	place list.Place // in Reactor.timers
}

// After runs fn on the reactor once, d nanoseconds from now or up to a few milliseconds later. stop
// cancels it; it is idempotent, and does nothing after fn has run. Both are for the reactor only.
func (r *Reactor) After(d int64, fn func()) (stop func()) {
	t, at := &timer{fn: fn}, int64(math.MaxInt64)
	if now := r.clock.read(); d < at-now {
		at = now + max(d, 0)
	}
	r.timers.Set(t, &t.place, at)
	return func() {
		r.timers.Remove(&t.place)
		t.fn = nil
	}
}

// Timers returns the number of timers that have neither run nor been stopped. Reactor only.
func (r *Reactor) Timers() int { return r.timers.Len() }

// runTimers runs the timers that are due by the last reading of the clock, at most timersMost, and
// returns their number. Timers that they start run in the next call at the earliest.
func (r *Reactor) runTimers() int {
	n, most := 0, min(r.timers.Len(), timersMost)
	for now := r.clock.now; n < most; n++ {
		t, at := r.timers.First()
		if t == nil || at > now {
			break
		}
		r.timers.Remove(&t.place)
		fn := t.fn
		t.fn = nil
		r.steps.begin()
		fn()
		r.steps.end(fn)
	}
	return n
}

// untilTimer returns the longest sleep in ms, rounded up: -1 without timers, 0 if one is due.
func (r *Reactor) untilTimer(now int64) int {
	t, at := r.timers.First()
	switch {
	case t == nil:
		return -1
	case at <= now:
		return 0
	}
	return int(min((at-now-1)/1e6+1, math.MaxInt32))
}
