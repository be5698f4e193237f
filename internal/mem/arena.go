package mem

// The path of a block:
//
//	Alloc   class cache -> buddy lists (split, low half first) -> both again with caches merged
//	        -> several smaller blocks
//	Free    class cache -> buddy lists (merge with the free buddy, and again)
//
// An allocation is a run of pages. A run that is not a power of two is the front of a larger block.
// The tail of the block goes back to the lists at once, so an allocation that fits a block is
// always one segment and wastes less than a page. All bookkeeping is on the Go heap, in arrays
// indexed by page number: blocks themselves are never accessed, so free memory stays unpopulated.

import (
	"fmt"
	"math/bits"
)

const (
	// BlockMin is the unit of an Arena in bytes: every segment starts at a multiple of it within
	// the region.
	BlockMin = 4 << 10
	// BlockMax is the largest segment an Arena hands out, in bytes.
	BlockMax = 1 << 20

	pageShift = 12
	maxOrder  = 8 // BlockMax = BlockMin << maxOrder
	orders    = maxOrder + 1

	// blocks of BlockMin kept unmerged; half as many of each next class, at least cacheLeast
	cacheDepth = 64
	cacheLeast = 4

	none = -1
)

// Arena hands out page-aligned blocks of one Region, for one reactor, without locks.
type Arena struct {
	region *Region
	base   []byte
	free   int // pages

	// run is the length in pages of the allocation that starts at this page, 0 if none does.
	run []int32
	// block is the free block that starts at this page: order+1 on a buddy list, 0 if none.
	block []uint8
	// next and prev link the buddy lists.
	next, prev []int32
	head       [orders]int32
	cache      [orders][]int32
	// avail has bit i set if head[i] is not empty.
	avail uint32
}

// NewArena maps size bytes (rounded up to BlockMin) for purpose and makes an arena of them, in huge
// pages if enough are free and size is a multiple of 2 MiB.
func NewArena(purpose string, size int) (*Arena, error) {
	if size <= 0 || size > BlockMin<<30 {
		return nil, fmt.Errorf("arena for %s: size %d bytes: must be from %d bytes to %d", purpose,
			size, BlockMin, int64(BlockMin)<<30)
	}
	size = (size + BlockMin - 1) &^ (BlockMin - 1)
	r, err := mapRegion(purpose, size, true)
	if err != nil {
		return nil, err
	}
	pages := size >> pageShift
	a := &Arena{
		region: r, base: r.Bytes()[:size],
		run: make([]int32, pages), block: make([]uint8, pages),
		next: make([]int32, pages), prev: make([]int32, pages),
	}
	for o := range a.head {
		a.head[o] = none
		a.cache[o] = make([]int32, 0, max(cacheDepth>>o, cacheLeast))
	}
	// From the top, so that low addresses come first from the lists.
	a.freeRange(int32(pages&^(1<<maxOrder-1)), int32(pages))
	for p := pages&^(1<<maxOrder-1) - 1<<maxOrder; p >= 0; p -= 1 << maxOrder {
		a.push(int32(p), maxOrder)
	}
	a.free = pages
	return a, nil
}

// Region returns the memory that blocks come from, for registration.
func (a *Arena) Region() *Region { return a.region }

// Available returns the number of bytes that are free.
func (a *Arena) Available() int { return a.free << pageShift }

// Close unmaps the memory. If a block is still allocated, nothing is unmapped, and the error gives
// the number of bytes still allocated. Memory with Region.Keep stays mapped, which is not an error.
func (a *Arena) Close() error {
	if a.region.kept.Load() {
		return nil
	}
	if a.free != len(a.run) {
		return fmt.Errorf("close arena for %s: %d of %d bytes are still allocated",
			a.region.purpose,
			(len(a.run)-a.free)<<pageShift, len(a.base))
	}
	a.base = nil
	return a.region.Unmap()
}

// Alloc appends to dst segments of n bytes in total: one for each whole BlockMax and one for the
// rest, or more if memory is fragmented. Their content is undefined. If less than n bytes, in whole
// BlockMin, are free, it returns dst and false. n is positive.
func (a *Arena) Alloc(dst []Segment, n int) ([]Segment, bool) {
	if n <= BlockMin && n > 0 {
		if c := a.cache[0]; len(c) > 0 {
			p := c[len(c)-1]
			a.cache[0] = c[:len(c)-1]
			a.free--
			return a.take(dst, p, 1, n), true
		}
	}
	return a.allocSlow(dst, n)
}

func (a *Arena) allocSlow(dst []Segment, n int) ([]Segment, bool) {
	pages := (n + BlockMin - 1) >> pageShift
	if n <= 0 || pages > a.free {
		return dst, false
	}
	for merged := false; n > 0; {
		want := min(pages, 1<<maxOrder)
		o := bits.Len32(uint32(want - 1))
		p := a.get(o)
		if p == none && !merged {
			a.merge()
			merged = true
			p = a.get(o)
		}
		if p == none { // no block is large enough: take the largest one and continue
			o = bits.Len32(a.avail) - 1
			want = 1 << o
			p = a.get(o)
		}
		if want < 1<<o {
			a.freeRange(p+int32(want), p+1<<o)
		}
		a.free -= want
		pages -= want
		b := min(n, want<<pageShift)
		dst = a.take(dst, p, want, b)
		n -= b
	}
	return dst, true
}

// take records the allocation of pages at p and appends its segment of n bytes.
func (a *Arena) take(dst []Segment, p int32, pages, n int) []Segment {
	a.run[p] = int32(pages)
	off := int(p) << pageShift
	return append(dst, Segment{B: a.base[off : off+n : off+pages<<pageShift], Region: a.region.id})
}

// Free frees segments of any calls of Alloc, in any order. B of a segment may be shortened at its
// end, but must start where it did. Free panics if a segment is not allocated.
func (a *Arena) Free(segs []Segment) {
	base := Addr(a.base)
	for i := range segs {
		off := Addr(segs[i].B) - base
		if off >= uint64(len(a.base)) || off&(BlockMin-1) != 0 || a.run[off>>pageShift] == 0 {
			panic(fmt.Sprintf(
				"mem: free of a segment that is not allocated: offset %#x of arena for %s", off,
				a.region.purpose))
		}
		p := int32(off >> pageShift)
		pages := a.run[p]
		a.run[p] = 0
		a.free += int(pages)
		if invariants {
			a.poison(p, pages)
		}
		if pages&(pages-1) != 0 {
			a.freeRange(p, p+pages)
			continue
		}
		o := bits.TrailingZeros32(uint32(pages))
		if c := a.cache[o]; len(c) < cap(c) {
			a.cache[o] = append(c, p)
		} else {
			a.put(p, o)
		}
	}
}

// get takes a block of order o from the cache or the lists, or returns none.
func (a *Arena) get(o int) int32 {
	if c := a.cache[o]; len(c) > 0 {
		p := c[len(c)-1]
		a.cache[o] = c[:len(c)-1]
		return p
	}
	larger := a.avail >> o
	if larger == 0 {
		return none
	}
	from := o + bits.TrailingZeros32(larger)
	p := a.head[from]
	a.unlink(p, from)
	for from > o {
		from--
		a.push(p+1<<from, from)
	}
	return p
}

// put returns a block to the lists and merges it with its buddy as long as the buddy is free.
func (a *Arena) put(p int32, o int) {
	for o < maxOrder {
		buddy := p ^ 1<<o
		if int(buddy) >= len(a.block) || a.block[buddy] != uint8(o+1) {
			break
		}
		a.unlink(buddy, o)
		p &^= 1 << o
		o++
	}
	a.push(p, o)
}

// freeRange returns the pages [from, to) of one BlockMax to the lists as the largest blocks.
func (a *Arena) freeRange(from, to int32) {
	for from < to {
		o := min(bits.Len32(uint32(to-from))-1, maxOrder)
		if from != 0 {
			o = min(o, bits.TrailingZeros32(uint32(from)))
		}
		a.put(from, o)
		from += 1 << o
	}
}

// merge empties the caches, which have about twice cacheDepth blocks, into the lists.
func (a *Arena) merge() {
	for o, c := range a.cache {
		for _, p := range c {
			a.put(p, o)
		}
		a.cache[o] = c[:0]
	}
}

func (a *Arena) push(p int32, o int) {
	h := a.head[o]
	a.next[p], a.prev[p] = h, none
	if h != none {
		a.prev[h] = p
	}
	a.head[o] = p
	a.block[p] = uint8(o + 1)
	a.avail |= 1 << o
}

func (a *Arena) unlink(p int32, o int) {
	next, prev := a.next[p], a.prev[p]
	if prev == none {
		a.head[o] = next
		if next == none {
			a.avail &^= 1 << o
		}
	} else {
		a.next[prev] = next
	}
	if next != none {
		a.prev[next] = prev
	}
	a.block[p] = 0
}
