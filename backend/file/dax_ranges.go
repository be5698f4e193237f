package file

import (
	"math/bits"
	"sync/atomic"
)

const (
	stripes   = 16384
	minStripe = 16 << 10 // bytes
)

// daxRanges keeps zero-copy reads and changes of the same blocks apart. Each stripe of the file has
// a word: how many zero-copy reads of its blocks are outstanding, and how many changes of them wait
// or are in progress. A change that has been added waits for the reads that there are; no more
// start until it is removed. The disk keeps changes and copying reads apart.
type daxRanges struct {
	shift uint
	table [stripes]atomic.Uint64
}

const (
	oneReader = uint64(1)
	oneChange = uint64(1) << 32
)

func (r *daxRanges) init(blockSize int) {
	r.shift = uint(bits.TrailingZeros(uint(max(blockSize, minStripe))))
}

// span returns the stripes of n bytes at off: count of them from first on, modulo stripes.
func (r *daxRanges) span(off, n int64) (first, count int64) {
	if n <= 0 {
		return 0, 0
	}
	first = off >> r.shift
	return first, min((off+n-1)>>r.shift-first+1, stripes)
}

func (r *daxRanges) at(i int64) *atomic.Uint64 { return &r.table[i&(stripes-1)] }

// addReader adds a zero-copy read of a range. It returns false if something changes there or is
// about to; last is as for removeReader then.
func (r *daxRanges) addReader(off, n int64) (ok, last bool) {
	first, count := r.span(off, n)
	for i := range count {
		p := r.at(first + i)
		for {
			v := p.Load()
			if v >= oneChange {
				return false, r.removeReaderFrom(first, i)
			}
			if p.CompareAndSwap(v, v+oneReader) {
				break
			}
		}
	}
	return true, false
}

// removeReader ends a zero-copy read. last says that it was the last one of a stripe that a change
// waits for.
func (r *daxRanges) removeReader(off, n int64) (last bool) {
	first, count := r.span(off, n)
	return r.removeReaderFrom(first, count)
}

func (r *daxRanges) removeReaderFrom(first, count int64) (last bool) {
	for i := range count {
		v := r.at(first + i).Add(^(oneReader - 1))
		last = last || v >= oneChange && v%oneChange == 0
	}
	return last
}

// addChange adds a change. It returns false if the change has to wait for zero-copy reads.
func (r *daxRanges) addChange(off, n int64) (clear bool) {
	first, count := r.span(off, n)
	clear = true
	for i := range count {
		clear = r.at(first+i).Add(oneChange)%oneChange == 0 && clear
	}
	return clear
}

// clear reports whether there are no zero-copy reads in the range of a change that has been added.
func (r *daxRanges) clear(off, n int64) bool {
	first, count := r.span(off, n)
	for i := range count {
		if r.at(first+i).Load()%oneChange != 0 {
			return false
		}
	}
	return true
}

// removeChange ends a change.
func (r *daxRanges) removeChange(off, n int64) {
	first, count := r.span(off, n)
	for i := range count {
		r.at(first + i).Add(^(oneChange - 1))
	}
}
