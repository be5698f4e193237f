package ram

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// frames is the memory of a device. It is cut into frames, of which a group has at most 64 within
// one chunk, so that a word says all of a group: neighbours that become free are together again by
// that alone. A frame belongs to
//
//	nobody     its bit of used is clear
//	a slot     at most one
//	a channel  on its stash, or reserved for a write
//	loans      it was replaced, or discarded, while on loan; the last one returned frees it
//
// There are spare frames beyond those that slots can have. What channels and loans have comes out
// of them, so that a slot without a frame finds one, unless loans of discarded frames are out.
type frames struct {
	region *mem.Region
	shift  uint  // of a frame
	per    int64 // frames of a group, a power of two
	count  int64
	used   []atomic.Uint64
	// dirty frames are populated; others read as zeroes.
	dirty []atomic.Uint64
	// loans of frames that are in no slot any more. They may be returned before they are counted:
	// the count that is 0 after a change is the last one.
	loans []atomic.Int64
	// spare is how many more frames channels and loans may have.
	spare atomic.Int64
	most  int64 // of spare
	// filled is called when the last frames of a group are going to be written.
	filled func()
}

// mark is the frames of [first, first+n), which lie within a group, in its word.
func (f *frames) mark(first, n int64) (group int64, bits uint64) {
	return first / f.per, (^uint64(0) >> (64 - n)) << (first & (f.per - 1))
}

// full is the word of a group without free frames.
func (f *frames) full() uint64 { return ^uint64(0) >> (64 - f.per) }

// each calls fn with the parts of [first, first+n) by group.
func (f *frames) each(first, n int64, fn func(first, n int64)) {
	for n > 0 {
		k := min(n, f.per-first&(f.per-1))
		fn(first, k)
		first, n = first+k, n-k
	}
}

// memory is the bytes of n frames.
func (f *frames) memory(first, n int64) []byte {
	return f.region.Bytes()[first<<f.shift : (first+n)<<f.shift]
}

// claim takes a frame if it is free.
func (f *frames) claim(frame int64) bool {
	g, bit := f.mark(frame, 1)
	return f.used[g].Load()&bit == 0 && f.used[g].Or(bit)&bit == 0
}

// free makes frames that lie within a group free.
func (f *frames) free(first, n int64) {
	g, mask := f.mark(first, n)
	f.used[g].And(^mask)
}

// scanMost is how many groups are looked at before a search is given up.
const scanMost = 4096

// grab takes all free frames of a group that has some, the first one from group at on, and says
// which.
func (f *frames) grab(at, most int64) (group int64, taken uint64, ok bool) {
	full, groups := f.full(), f.count/f.per
	for range min(most, groups) {
		if at >= groups {
			at = 0
		}
		if w := f.used[at].Load(); w != full && f.used[at].CompareAndSwap(w, full) {
			return at, full &^ w, true
		}
		at++
	}
	return at, 0, false
}

// last takes a frame from wherever there is one, for a slot that has one or has none: only then it
// is a spare one.
func (f *frames) last(has bool) (frame int64, ok bool) {
	if has && f.spare.Add(-1) < 0 {
		f.spare.Add(1)
		return 0, false
	}
	g, taken, ok := f.grab(0, f.count/f.per)
	if !ok {
		if has {
			f.spare.Add(1)
		}
		return 0, false
	}
	f.used[g].And(^(taken & (taken - 1))) // the lowest one will do
	return g*f.per + int64(bits.TrailingZeros64(taken)), true
}

// soil notes that frames within a group are going to be written. It says whether all of them read
// as zeroes so far.
func (f *frames) soil(first, n int64) (clean bool) {
	g, mask := f.mark(first, n)
	was := f.dirty[g].Load()
	if was&mask != mask {
		was = f.dirty[g].Or(mask)
		f.region.Charge(int64(bits.OnesCount64(mask&^was)) << f.shift)
		if was|mask == f.full() {
			f.filled()
		}
	}
	return was&mask == 0
}

// populated says that all of [from, to) of the region is.
func (f *frames) populated(from, to int64) bool {
	group := f.per << f.shift
	for g := from / group; g*group < to; g++ {
		if f.dirty[g].Load() != f.full() {
			return false
		}
	}
	return true
}

// wash gives the memory of frames that the caller has, within a group, back to the kernel, if no
// device has it registered.
func (f *frames) wash(first, n int64) error {
	g, mask := f.mark(first, n)
	if f.dirty[g].Load()&mask == 0 {
		return nil
	}
	err := f.region.Discard(int(first<<f.shift), int(n<<f.shift))
	if errors.Is(err, mem.ErrPinned) {
		return nil // it is free all the same
	}
	if err != nil {
		return fmt.Errorf("ram device: %w: %w", backend.ErrIO, err)
	}
	was := f.dirty[g].And(^mask)
	f.region.Charge(-int64(bits.OnesCount64(was&mask)) << f.shift)
	return nil
}

// orphan notes the loans of a frame that is in no slot any more. It returns true if all of them
// have been returned meanwhile: the frame is the caller's.
func (f *frames) orphan(frame, loans int64) bool { return f.loans[frame].Add(loans) == 0 }

// giveBack returns a loan of such a frame. The last one frees it.
func (f *frames) giveBack(frame int64) {
	if f.loans[frame].Add(-1) == 0 {
		f.poison(frame, 1)
		f.free(frame, 1)
		f.spare.Add(1)
	}
}
