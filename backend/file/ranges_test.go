package file

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestSpan(t *testing.T) {
	var r ranges
	r.init(512)
	const g = minGranule
	for _, tc := range []struct {
		off, n int64
		want   span
	}{
		{0, 0, span{}},
		{0, 1, span{a: 0, b: 1}},
		{g - 1, 1, span{a: 0, b: 1}},
		{g - 1, 2, span{a: 0, b: 2}},
		{g, 512, span{a: 1, b: 2}},
		{5 * g, 3 * g, span{a: 5, b: 8}},
		{(nRanges - 1) * g, g, span{a: nRanges - 1, b: nRanges}},
		{(nRanges - 1) * g, 2 * g, span{a: 0, b: 1, c: nRanges - 1, d: nRanges}},
		{7 * nRanges * g, g, span{a: 0, b: 1}},
		{3 * g, (nRanges - 1) * g, span{a: 0, b: 2, c: 3, d: nRanges}},
		{3 * g, nRanges * g, span{b: nRanges}},
		{512, 1 << 40, span{b: nRanges}},
	} {
		if got := r.span(tc.off, tc.n); got != tc.want {
			t.Errorf("span(%d, %d) = %v, want %v", tc.off, tc.n, got, tc.want)
		}
	}
	r.init(64 << 10)
	if got := r.span(64<<10, 64<<10); got != (span{a: 1, b: 2}) {
		t.Errorf("with blocks of 64 KiB: %v", got)
	}
}

// TestRangesExclude: writers exclude everyone from what they overlap, readers share, and nobody deadlocks.
func TestRangesExclude(t *testing.T) {
	var r ranges
	r.init(4096)
	const blocks = 3 * nRanges / 2
	var state [blocks]atomic.Int32 // readers, or -1 for a writer
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 200 {
				first := (i*977 + k*131) % blocks
				n := min(1+(i*31+k*17)%300, blocks-first)
				if k%50 == 0 {
					first, n = 0, blocks
				}
				write := k%3 == 0
				off, length := int64(first)*4096, int64(n)*4096
				r.lock(off, length, write)
				for b := first; b < first+n; b++ {
					if write && !state[b].CompareAndSwap(0, -1) || !write && state[b].Add(1) <= 0 {
						t.Errorf("block %d is not exclusive", b)
					}
				}
				for b := first; b < first+n; b++ {
					if write {
						state[b].Store(0)
					} else {
						state[b].Add(-1)
					}
				}
				r.unlock(off, length, write)
			}
		})
	}
	wg.Wait()
}
