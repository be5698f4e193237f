package reactor

import (
	"container/heap"
	"math"
)

// timer is one pending After.
type timer struct {
	at    int64
	fn    func()
	index int // in the heap, -1 if not in it
}

// After runs fn on the reactor once, d nanoseconds from now or up to a few milliseconds later. stop
// cancels it; it is idempotent, and does nothing after fn has run. Both are for the reactor only.
func (r *Reactor) After(d int64, fn func()) (stop func()) {
	t := &timer{at: math.MaxInt64, fn: fn}
	if now := r.clock.read(); d < math.MaxInt64-now {
		t.at = now + max(d, 0)
	}
	heap.Push(&r.timers, t)
	return func() {
		if t.index >= 0 {
			heap.Remove(&r.timers, t.index)
			t.fn = nil
		}
	}
}

// Timers returns the number of timers that have neither run nor been stopped. Reactor only.
func (r *Reactor) Timers() int { return len(r.timers) }

// runTimers runs the timers that are due by the last reading of the clock, at most timersMost, and
// returns their number. Timers that they start run in the next call at the earliest.
func (r *Reactor) runTimers() int {
	if len(r.timers) == 0 {
		return 0
	}
	now := r.clock.now
	n, due := 0, min(len(r.timers), timersMost)
	for ; due > 0 && len(r.timers) > 0 && r.timers[0].at <= now; due-- {
		t := heap.Pop(&r.timers).(*timer)
		fn := t.fn
		t.fn = nil
		r.steps.begin()
		fn()
		r.steps.end(fn)
		n++
	}
	return n
}

// timerHeap is a heap by deadline.
type timerHeap []*timer

// timeout returns the longest sleep in ms, rounded up: -1 without timers, 0 if one is due.
func (h timerHeap) timeout(now int64) int {
	if len(h) == 0 {
		return -1
	}
	d := h[0].at - now
	if d <= 0 {
		return 0
	}
	return int(min((d-1)/1e6+1, math.MaxInt32))
}

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *timerHeap) Push(x any) {
	t := x.(*timer)
	t.index = len(*h)
	*h = append(*h, t)
}

func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}
