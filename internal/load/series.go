package load

import (
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/histogram"
)

const (
	maxCells      = 128
	firstInterval = 100 * time.Millisecond
)

// Cell has the reads and writes of one interval. The latency is in nanoseconds.
type Cell struct {
	Bytes   [2]uint64 // by Kind
	Latency histogram.Histogram
}

// Series has the I/O over time, in a fixed number of cells. If a run takes longer, pairs of cells
// become one. It belongs to the thread of the run; Ops and Bytes may be read at any time.
type Series struct {
	Interval   time.Duration
	Ops, Bytes atomic.Uint64

	cells [maxCells]Cell
	n     int // the cell in use
	end   time.Time
}

// NewSeries makes a Series for one run.
func NewSeries() *Series { return &Series{Interval: firstInterval} }

// Cells returns the cells reached so far.
func (s *Series) Cells() []Cell { return s.cells[:s.n+1] }

func (s *Series) at(now time.Time) *Cell {
	for !now.Before(s.end) {
		if s.n++; s.n == maxCells {
			s.halve()
		}
		s.end = s.end.Add(s.Interval)
	}
	return &s.cells[s.n]
}

// halve merges pairs of cells and doubles the length of the interval.
func (s *Series) halve() {
	for i := range maxCells / 2 {
		c := &s.cells[i]
		*c = s.cells[2*i]
		c.merge(&s.cells[2*i+1])
	}
	clear(s.cells[maxCells/2:])
	s.n, s.Interval = maxCells/2, 2*s.Interval
}

func (c *Cell) merge(o *Cell) {
	for k := range c.Bytes {
		c.Bytes[k] += o.Bytes[k]
	}
	c.Latency.Merge(&o.Latency)
}

// Merge adds another series that began at the same time.
func (s *Series) Merge(o *Series) {
	for s.Interval < o.Interval {
		s.double()
	}
	for o.Interval < s.Interval {
		o.double()
	}
	for i := range o.Cells() {
		s.cells[i].merge(&o.cells[i])
	}
	s.n = max(s.n, o.n)
}

// double is halve regardless of the cell in use.
func (s *Series) double() {
	n := s.n / 2
	s.halve()
	s.n = n
}
