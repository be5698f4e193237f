package main

import (
	"time"

	"github.com/nvmf-target/nvmf-target/internal/histogram"
)

// floorLatency measures the latency of requests of a floor. Only workloads with timed set have one,
// because it slows the client down.
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

// answered counts the n oldest requests, which are replaced by as many new ones.
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
