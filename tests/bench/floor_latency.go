package main

import "time"

// floorLatency keeps how long the requests of a floor took. Only rows that ask for it have one: it
// costs the client time, which is part of what other rows compare.
type floorLatency struct {
	began []time.Time // of the requests in flight, a ring: they are answered in order
	next  int         // the oldest
	histogram
}

func newFloorLatency(depth int) *floorLatency {
	return &floorLatency{began: make([]time.Time, depth)}
}

// begin is when the first requests are ready to be sent.
func (l *floorLatency) begin() {
	for i := range l.began {
		l.began[i] = time.Now()
	}
}

// answered counts the n oldest requests, in whose place as many begin now.
func (l *floorLatency) answered(n int) {
	if n == 0 {
		return
	}
	now := time.Now()
	for range n {
		l.add(uint64(now.Sub(l.began[l.next])))
		l.began[l.next] = now
		l.next = (l.next + 1) % len(l.began)
	}
}
