// Package histogram counts durations in buckets. The width of a bucket is at most a sixteenth of
// its values, so a quantile is within 1/32 of the exact one.
package histogram

import (
	"iter"
	"math/bits"
)

const (
	subBits = 4
	// maxBits bounds the resolution: 2^36 ns is 69 s.
	maxBits = 36
	buckets = (maxBits - subBits + 1) << subBits
)

// Histogram counts durations in nanoseconds, for one goroutine at a time. The zero value is empty.
type Histogram struct {
	counts   [buckets]uint64
	sum, max int64
}

func bucketOf(ns int64) int {
	n := uint64(max(ns, 0))
	if n < 1<<subBits {
		return int(n)
	}
	shift := bits.Len64(n) - 1 - subBits
	return min((shift+1)<<subBits+int(n>>shift)&(1<<subBits-1), buckets-1)
}

// lowest returns the smallest duration of a bucket.
func lowest(bucket int) int64 {
	if bucket < 1<<subBits {
		return int64(bucket)
	}
	shift := bucket>>subBits - 1
	return int64(1<<subBits+bucket&(1<<subBits-1)) << shift
}

func middle(bucket int) int64 { return (lowest(bucket) + lowest(bucket+1)) / 2 }

// Add counts a duration.
func (h *Histogram) Add(ns int64) {
	h.counts[bucketOf(ns)]++
	h.sum += ns
	h.max = max(h.max, ns)
}

// AddZeros counts n durations of 0.
func (h *Histogram) AddZeros(n uint64) { h.counts[0] += n }

// Merge adds the durations counted by o.
func (h *Histogram) Merge(o *Histogram) {
	for i, n := range &o.counts {
		h.counts[i] += n
	}
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// Count returns the number of durations.
func (h *Histogram) Count() (n uint64) {
	for _, c := range &h.counts {
		n += c
	}
	return n
}

// Sum returns the sum of all durations.
func (h *Histogram) Sum() int64 { return h.sum }

// Max returns the longest duration.
func (h *Histogram) Max() int64 { return h.max }

// Quantile returns the duration that the fraction q did not exceed; for 1 it is the maximum.
func (h *Histogram) Quantile(q float64) int64 {
	if q >= 1 {
		return h.max
	}
	left := uint64(q * float64(h.Count()))
	for b, n := range &h.counts {
		if n > left {
			return min(middle(b), h.max)
		}
		left -= n
	}
	return h.max
}

// All iterates over the nonempty buckets in ascending order, with the middle and the count of each.
// Powers of two are bounds of buckets.
func (h *Histogram) All() iter.Seq2[int64, uint64] {
	return func(yield func(int64, uint64) bool) {
		for b, n := range &h.counts {
			if n > 0 && !yield(middle(b), n) {
				return
			}
		}
	}
}
