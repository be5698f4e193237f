package main

import "math/bits"

// histogram counts latencies in nanoseconds, in buckets whose width is at most 1/32 of their value.
type histogram struct {
	counts [64 << subBits]uint64
	total  uint64
	max    uint64
}

const subBits = 5

func bucketOf(ns uint64) int {
	if ns < 1<<subBits {
		return int(ns)
	}
	shift := bits.Len64(ns) - 1 - subBits
	return (shift+1)<<subBits + int(ns>>shift)&(1<<subBits-1)
}

// lowest is the smallest latency of a bucket.
func lowest(bucket int) uint64 {
	if bucket < 1<<subBits {
		return uint64(bucket)
	}
	shift := bucket>>subBits - 1
	return uint64(1<<subBits+bucket&(1<<subBits-1)) << shift
}

func (h *histogram) add(ns uint64) {
	h.counts[bucketOf(ns)]++
	h.total++
	h.max = max(h.max, ns)
}

// quantile is the latency in nanoseconds that the fraction q did not exceed; the maximum for 1.
func (h *histogram) quantile(q float64) float64 {
	if q >= 1 {
		return float64(h.max)
	}
	left := uint64(q * float64(h.total))
	for b, n := range h.counts {
		if n > left {
			return float64(lowest(b))
		}
		left -= n
	}
	return float64(h.max)
}
