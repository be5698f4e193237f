package disk

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	nRanges    = 1024
	minGranule = 4 << 10
)

// fence keeps commands apart that touch the same blocks, so that none sees a block torn (NVM
// Express Base Specification 1.4, section 6.4: AWUN is at least one block): a buffered read may see
// half of a racing write, and a direct one what the disk makes of it. Readers share. The unit is a
// page or a block, whatever is larger, so that the page cache, where it helps to zero parts of
// pages, never works on a page that another command writes directly.
//
// Taking free blocks is one atomic operation for each. An op that meets a busy one gives back what
// it has and queues; whoever releases blocks while somebody queues looks through the queue in
// order, so that no op is overtaken for ever by those it conflicts with.
type fence struct {
	shift uint
	table [nRanges]atomic.Int32 // the number of readers, -1 for a writer
	// waiting is the length of queue, or more while somebody is about to queue.
	waiting atomic.Int32
	mu      sync.Mutex
	queue   opList // under mu
}

func (f *fence) init(blockSize int) {
	f.shift = uint(bits.TrailingZeros(uint(max(blockSize, minGranule))))
}

// span is the places of a command in the table: [a, b) and then [c, d).
type span struct{ a, b, c, d int }

func (f *fence) span(off, n int64) span {
	first, last := off>>f.shift, (off+n-1)>>f.shift
	if n <= 0 {
		return span{}
	}
	if last-first >= nRanges-1 {
		return span{b: nRanges}
	}
	i, j := int(first%nRanges), int(last%nRanges)+1
	if i < j {
		return span{a: i, b: j}
	}
	return span{a: 0, b: j, c: i, d: nRanges}
}

// acquire takes the blocks of o, alone if o.write. False: o waits and comes with admitted in the
// inbox of its channel; so may others now.
func (f *fence) acquire(o *op) bool {
	o.span = f.span(o.io.Off, o.io.Len)
	if f.waiting.Load() == 0 && f.try(o) {
		return true
	}
	// Whoever releases a block from here on sees that somebody waits; who did before is seen by the
	// scan. The scan is due as well because others may have queued when they met what try took for
	// a moment.
	f.waiting.Add(1)
	f.mu.Lock()
	f.queue.push(o)
	f.scan()
	f.mu.Unlock()
	return false
}

// release gives the blocks of o back.
func (f *fence) release(o *op) {
	f.free(o, o.span.a, o.span.b)
	f.free(o, o.span.c, o.span.d)
	if f.waiting.Load() > 0 {
		f.mu.Lock()
		f.scan()
		f.mu.Unlock()
	}
}

func (f *fence) free(o *op, from, to int) {
	for i := from; i < to; i++ {
		if o.write {
			f.table[i].Store(0)
		} else {
			f.table[i].Add(-1)
		}
	}
}

// try takes all blocks of o or none.
func (f *fence) try(o *op) bool {
	s := o.span
	if n := f.take(o, s.a, s.b); n < s.b {
		f.free(o, s.a, n)
		return false
	}
	if n := f.take(o, s.c, s.d); n < s.d {
		f.free(o, s.c, n)
		f.free(o, s.a, s.b)
		return false
	}
	return true
}

// take takes places from there on and returns the first one that is busy, or to.
func (f *fence) take(o *op, from, to int) int {
	for i := from; i < to; i++ {
		p := &f.table[i]
		if o.write {
			if !p.CompareAndSwap(0, -1) {
				return i
			}
			continue
		}
		for {
			n := p.Load()
			if n < 0 {
				return i
			}
			if p.CompareAndSwap(n, n+1) {
				break
			}
		}
	}
	return to
}

// scan admits those in the queue that meet neither a busy block nor one that an earlier one waits
// for. f.mu is held.
func (f *fence) scan() {
	var kept opList
	var claims claims
	for o := f.queue.pop(); o != nil; o = f.queue.pop() {
		if !claims.conflict(o) && f.try(o) {
			f.waiting.Add(-1)
			o.c.deliver(o, admitted)
			continue
		}
		claims.add(o)
		kept.push(o)
	}
	f.queue = kept
}

// claims are the places that queued ops wait for, a bit for each.
type claims struct{ readers, writers [nRanges / 64]uint64 }

func (c *claims) conflict(o *op) (yes bool) {
	o.span.words(func(i int, mask uint64) {
		busy := c.writers[i]
		if o.write {
			busy |= c.readers[i]
		}
		yes = yes || busy&mask != 0
	})
	return yes
}

func (c *claims) add(o *op) {
	o.span.words(func(i int, mask uint64) {
		if o.write {
			c.writers[i] |= mask
		} else {
			c.readers[i] |= mask
		}
	})
}

// words calls fn with each word of a bitmap that has places of the span, and which bits they are.
func (s span) words(fn func(i int, mask uint64)) {
	for _, part := range [2][2]int{{s.a, s.b}, {s.c, s.d}} {
		for at := part[0]; at < part[1]; {
			end := min(part[1], at&^63+64)
			fn(at>>6, ^uint64(0)<<(at&63)&(^uint64(0)>>(63-(end-1)&63)))
			at = end
		}
	}
}
