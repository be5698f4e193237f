package ram

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// frames is the memory of a device, cut into frames. A group has at most 64 of them, all within one
// chunk. So one word describes a group, and neighbors that become free are adjacent without further
// work. A frame is
//
//	free              its bit in used is clear
//	in a slot         in one at most
//	with a channel    in its frame cache, or part of a zero-copy write that has not been committed
//	with its readers  replaced or discarded while it was being read; the last read to end frees it
//
// There are spare frames beyond the frames of slots. Channels and readers take their frames from
// the spare ones. So a slot without a frame finds one, unless discarded frames are still being
// read.
type frames struct {
	region *mem.Region
	shift  uint  // log2 of the bytes of a frame
	per    int64 // frames of a group, a power of two
	count  int64
	used   []atomic.Uint64
	// dirty frames are populated; others read as zeroes.
	dirty []atomic.Uint64
	// readers counts readers of frames that are no longer in a slot. A read may end before the
	// count is added: the change that leaves 0 is the last one.
	readers []atomic.Int64
	// spare is the number of additional frames that channels and readers may have.
	spare    atomic.Int64
	maxSpare int64
	// filled is called when the last frames of a group become dirty.
	filled func()
}

// mask returns the group of the frames [first, first+n), which lie within it, and their bits.
func (f *frames) mask(first, n int64) (group int64, bits uint64) {
	return first / f.per, (^uint64(0) >> (64 - n)) << (first & (f.per - 1))
}

// full is the word of a group without free frames.
func (f *frames) full() uint64 { return ^uint64(0) >> (64 - f.per) }

// each calls fn with the part of [first, first+n) in each group.
func (f *frames) each(first, n int64, fn func(first, n int64)) {
	for n > 0 {
		k := min(n, f.per-first&(f.per-1))
		fn(first, k)
		first, n = first+k, n-k
	}
}

func (f *frames) memory(first, n int64) []byte {
	return f.region.Bytes()[first<<f.shift : (first+n)<<f.shift]
}

// claim takes a frame if it is free.
func (f *frames) claim(frame int64) bool {
	g, bit := f.mask(frame, 1)
	return f.used[g].Load()&bit == 0 && f.used[g].Or(bit)&bit == 0
}

// free makes frames within a group free.
func (f *frames) free(first, n int64) {
	g, mask := f.mask(first, n)
	f.used[g].And(^mask)
}

// maxScan is the number of groups that a search looks at in one step.
const maxScan = 512

// grab takes one free frame, or all, of the first group from at on that has some, and returns their
// bits. It looks at maxScan groups. If they have none, it returns the next one.
func (f *frames) grab(at int64, one bool) (group int64, taken uint64, ok bool) {
	full, groups := f.full(), f.count/f.per
	for range min(maxScan, groups) {
		if at >= groups {
			at = 0
		}
		for w := f.used[at].Load(); w != full; w = f.used[at].Load() {
			next := full
			if one { // the lowest one, and no other for a moment: nobody would be woken for that
				next = w | (w + 1)
			}
			if f.used[at].CompareAndSwap(w, next) {
				return at, next &^ w, true
			}
		}
		at++
	}
	return at, 0, false
}

// last takes any free frame for a slot. replaces reports whether the slot has one already: then the
// new frame is a spare one. A search that has not come to its end goes on in the next Poll, where
// it has stopped. It is one for all changes of the channel: after its end none of them searches
// until something has become free.
func (c *channel) last(replaces bool) (frame int64, ok bool) {
	f := &c.d.frames
	if c.searched >= f.count/f.per {
		return 0, false
	}
	if replaces && f.spare.Add(-1) < 0 {
		f.spare.Add(1)
		return 0, false
	}
	g, taken, ok := f.grab(c.searchAt, true)
	if !ok {
		if replaces {
			f.spare.Add(1)
		}
		c.searchAt, c.searched = g, c.searched+maxScan
		return 0, false
	}
	c.searchAt = g
	return g*f.per + int64(bits.TrailingZeros64(taken)), true
}

// restart begins a search again: frames may have become free in the groups that it has looked at.
func (c *channel) restart() { c.searched, c.tried = 0, 0 }

// searches reports whether blocked changes are to be tried again because their search goes on. It
// does not if all were tried and none has searched.
func (c *channel) searches() bool {
	f := &c.d.frames
	return c.searched != c.tried && c.searched < f.count/f.per
}

// markDirty records that frames of a group are to be written; true: all read as zeroes so far.
func (f *frames) markDirty(first, n int64) (clean bool) {
	g, mask := f.mask(first, n)
	was := f.dirty[g].Load()
	if was&mask != mask {
		was = f.dirty[g].Or(mask)
		if was|mask == f.full() {
			f.filled()
		}
	}
	return was&mask == 0
}

// populated reports whether all of [from, to) of the region is populated.
func (f *frames) populated(from, to int64) bool {
	group := f.per << f.shift
	for g := from / group; g*group < to; g++ {
		if f.dirty[g].Load() != f.full() {
			return false
		}
	}
	return true
}

// discard gives the memory of the caller's frames back to the kernel, unless a device has it.
func (f *frames) discard(first, n int64) error {
	g, mask := f.mask(first, n)
	if f.dirty[g].Load()&mask == 0 {
		return nil
	}
	err := f.region.Discard(int(first<<f.shift), int(n<<f.shift))
	if errors.Is(err, mem.ErrPinned) {
		return nil // the frames are free all the same
	}
	if err != nil {
		return fmt.Errorf("ram device: %w: %w", backend.ErrIO, err)
	}
	f.dirty[g].And(^mask)
	return nil
}

// leaveToReaders records the readers of a frame that has been taken out of its slot. It returns
// true if all of them have already ended: the frame then belongs to the caller.
func (f *frames) leaveToReaders(frame, readers int64) bool {
	return f.readers[frame].Add(readers) == 0
}

// removeReader ends a read of such a frame. The last one frees it.
func (f *frames) removeReader(frame int64) {
	if f.readers[frame].Add(-1) == 0 {
		f.poison(frame, 1)
		f.free(frame, 1)
		f.spare.Add(1)
	}
}
