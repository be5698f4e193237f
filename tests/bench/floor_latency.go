package main

import (
	"time"

	"github.com/nvmf-target/nvmf-target/internal/histogram"
)

// floorLatency measures how long the requests of a floor take. Only workloads with timed set have
// one, because it slows the client down.
type floorLatency struct {
	began []time.Time // of the requests in flight, a ring: they are answered in order
	next  int         // the oldest
	histogram.Histogram
}

func newFloorLatency(depth int) *floorLatency {
	return &floorLatency{began: make([]time.Time, depth)}
}

// begin records that the first requests are ready to be sent.
func (l *floorLatency) begin() {
	for i := range l.began {
		l.began[i] = time.Now()
	}
}

// answered counts the n oldest requests, which as many new ones replace.
func (l *floorLatency) answered(n int) {
	if n == 0 {
		return
	}
	now := time.Now()
	for range n {
		l.Add(int64(now.Sub(l.began[l.next])))
		l.began[l.next] = now
		l.next = (l.next + 1) % len(l.began)
	}
}
