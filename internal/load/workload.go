package load

import (
	"math"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/histogram"
)

// Workload describes the I/O of each of its queues.
type Workload struct {
	Name string
	// Size is the size of an I/O in bytes. Sizes has other sizes for some of the I/Os.
	Size   int
	Sizes  []Share
	Depth  int // I/Os in flight on each queue
	Queues int
	Reads  int           // percent; the others are writes
	Think  time.Duration // from a completion to the next submission
	// Sequential queues begin at evenly distributed places.
	Sequential bool
	Burst      int // I/Os between flushes, which run alone; 0 for no flushes
	// Rate is the number of I/Os per second of all queues. Each I/O is due at its time, and its
	// latency counts from then, whether or not a slot was free. 0 means as fast as possible.
	Rate float64
	// Offset and Length are the range of the namespace in bytes; Length 0 means the rest.
	Offset, Length uint64
	// Parts divides the range into parts of equal size, one for each queue.
	Parts bool
	// Once ends a queue after each of its places has had its turn; it implies Parts.
	Once bool
	// Verify writes a pattern, or compares data with it, as Load.Pass selects; it implies Once.
	Verify bool
	Seed   uint64 // of places, and of the pattern
}

// Share is the size of some I/Os, in bytes, a multiple of the smallest one.
type Share struct{ Size, Percent int }

func (w *Workload) largest() int {
	n := w.Size
	for _, s := range w.Sizes {
		n = max(n, s.Size)
	}
	return n
}

// smallest returns the smallest size, which is the alignment of all of them.
func (w *Workload) smallest() int {
	n := w.Size
	for _, s := range w.Sizes {
		n = min(n, s.Size)
	}
	return n
}

func (w *Workload) once() bool { return w.Once || w.Verify }

// Kind is the kind of a command.
type Kind uint8

// The kinds of commands.
const (
	Read Kind = iota
	Write
	Flush
	Kinds = iota
)

// Count counts the commands of one kind. The latency is in nanoseconds.
type Count struct {
	Bytes   uint64
	Latency histogram.Histogram
}

// Outcome is the result of a measurement.
type Outcome struct {
	Elapsed time.Duration
	Counts  [Kinds]Count
	// Late is the number of I/Os that were due but had not begun by the end.
	Late uint64

	exact []int64 // exact latencies while there is room, for tests
}

func (o *Outcome) Latency() *histogram.Histogram {
	h := o.Counts[Read].Latency
	h.Merge(&o.Counts[Write].Latency)
	return &h
}

// Ops returns the number of reads and writes.
func (o *Outcome) Ops() uint64 {
	return o.Counts[Read].Latency.Count() + o.Counts[Write].Latency.Count()
}

// Merge adds another outcome of the same period.
func (o *Outcome) Merge(p *Outcome) {
	o.Elapsed = max(o.Elapsed, p.Elapsed)
	o.Late += p.Late
	for k := range o.Counts {
		o.Counts[k].Bytes += p.Counts[k].Bytes
		o.Counts[k].Latency.Merge(&p.Counts[k].Latency)
	}
}

func (o *Outcome) add(k Kind, bytes int, d time.Duration) {
	c := &o.Counts[k]
	c.Bytes += uint64(bytes)
	c.Latency.Add(int64(d))
	if len(o.exact) < cap(o.exact) {
		o.exact = append(o.exact, int64(d))
	}
}

const unlimited = math.MaxUint64
