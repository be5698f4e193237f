package file

import (
	"math/bits"
	"sync/atomic"
)

const (
	stripes     = 16384
	leastStripe = 16 << 10
)

// fence keeps loans and changes apart. A stripe is a word: how many loans of its blocks are out,
// and how many changes of them wait or are under way, which is one atomic operation for each of
// either. A change that has announced itself waits for the loans there are; no more are given until
// it is done. Changes and copies are kept apart by the disk.
type fence struct {
	shift uint
	table [stripes]atomic.Uint64
}

const (
	oneLoan   = uint64(1)
	oneChange = uint64(1) << 32
)

func (f *fence) init(blockSize int) {
	f.shift = uint(bits.TrailingZeros(uint(max(blockSize, leastStripe))))
}

// span is the stripes of n bytes at off: count of them from first on, modulo stripes.
func (f *fence) span(off, n int64) (first, count int64) {
	if n <= 0 {
		return 0, 0
	}
	first = off >> f.shift
	return first, min((off+n-1)>>f.shift-first+1, stripes)
}

func (f *fence) at(i int64) *atomic.Uint64 { return &f.table[i&(stripes-1)] }

// lend takes a loan of a range. False: something changes there, or is about to; ended says as for
// giveBack.
func (f *fence) lend(off, n int64) (ok, ended bool) {
	first, count := f.span(off, n)
	for i := range count {
		p := f.at(first + i)
		for {
			v := p.Load()
			if v >= oneChange {
				return false, f.giveBackStripes(first, i)
			}
			if p.CompareAndSwap(v, v+oneLoan) {
				break
			}
		}
	}
	return true, false
}

// giveBack ends a loan. ended: it was the last one of a stripe that a change waits for.
func (f *fence) giveBack(off, n int64) (ended bool) {
	first, count := f.span(off, n)
	return f.giveBackStripes(first, count)
}

func (f *fence) giveBackStripes(first, count int64) (ended bool) {
	for i := range count {
		v := f.at(first + i).Add(^(oneLoan - 1))
		ended = ended || v >= oneChange && v%oneChange == 0
	}
	return ended
}

// announce begins a change. False: it waits for loans.
func (f *fence) announce(off, n int64) (clear bool) {
	first, count := f.span(off, n)
	clear = true
	for i := range count {
		clear = f.at(first+i).Add(oneChange)%oneChange == 0 && clear
	}
	return clear
}

// clear says that there are no loans where a change has been announced.
func (f *fence) clear(off, n int64) bool {
	first, count := f.span(off, n)
	for i := range count {
		if f.at(first+i).Load()%oneChange != 0 {
			return false
		}
	}
	return true
}

// over ends a change.
func (f *fence) over(off, n int64) {
	first, count := f.span(off, n)
	for i := range count {
		f.at(first + i).Add(^(oneChange - 1))
	}
}
