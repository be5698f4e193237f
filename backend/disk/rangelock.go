package disk

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/internal/list"
)

const (
	nUnits  = 1024
	minUnit = 4 << 10
)

// rangeLock keeps commands apart that touch the same blocks while one of them writes, so that none
// sees a block torn (NVM Express Base Specification 1.4, section 6.4: AWUN is at least one block):
// a buffered read may see half of a racing write, and a direct one depends on the disk. Readers
// share. The unit is a page or a block, whichever is larger, so that the page cache, where it helps
// to zero parts of pages, never works on a page that another command writes directly.
//
// Locking a free range is one atomic operation per unit. An op that meets a unit that is locked
// unlocks those it has and queues. An unlock of a range while ops are queued scans the queue in
// order, so that no op is overtaken forever by those it conflicts with.
type rangeLock struct {
	shift uint
	table [nUnits]atomic.Int32 // the number of readers, -1 for a writer
	// waiting is the length of queue, or more while an op is about to queue.
	waiting atomic.Int32
	mu      sync.Mutex
	queue   list.List[op] // under mu
}

func (r *rangeLock) init(blockSize int) {
	r.shift = uint(bits.TrailingZeros(uint(max(blockSize, minUnit))))
}

// span is the units of a command in the table: [a, b) and then [c, d).
type span struct{ a, b, c, d int }

func (r *rangeLock) span(off, n int64) span {
	first, last := off>>r.shift, (off+n-1)>>r.shift
	if n <= 0 {
		return span{}
	}
	if last-first >= nUnits-1 {
		return span{b: nUnits}
	}
	i, j := int(first%nUnits), int(last%nUnits)+1
	if i < j {
		return span{a: i, b: j}
	}
	return span{a: 0, b: j, c: i, d: nUnits}
}

// lock locks the range of o, exclusively if o.write. If it returns false, o waits and is delivered
// to its channel as granted later; other ops may be by this call.
func (r *rangeLock) lock(o *op) bool {
	o.span = r.span(o.io.Off, o.io.Len)
	if r.waiting.Load() == 0 && r.try(o) {
		return true
	}
	// A range that is unlocked from here on is followed by a scan; one that was unlocked before is
	// seen by this scan. The scan is due as well because other ops may have queued when
	// they met what try had locked for a moment.
	r.waiting.Add(1)
	r.mu.Lock()
	r.queue.Push(o, &o.node)
	r.scan()
	r.mu.Unlock()
	return false
}

// unlock unlocks the range of o.
func (r *rangeLock) unlock(o *op) {
	r.free(o, o.span.a, o.span.b)
	r.free(o, o.span.c, o.span.d)
	if r.waiting.Load() > 0 {
		r.mu.Lock()
		r.scan()
		r.mu.Unlock()
	}
}

func (r *rangeLock) free(o *op, from, to int) {
	for i := from; i < to; i++ {
		if o.write {
			r.table[i].Store(0)
		} else {
			r.table[i].Add(-1)
		}
	}
}

// try locks all units of o or none.
func (r *rangeLock) try(o *op) bool {
	s := o.span
	if n := r.take(o, s.a, s.b); n < s.b {
		r.free(o, s.a, n)
		return false
	}
	if n := r.take(o, s.c, s.d); n < s.d {
		r.free(o, s.c, n)
		r.free(o, s.a, s.b)
		return false
	}
	return true
}

// take locks units from there on and returns the first one that it cannot lock, or to.
func (r *rangeLock) take(o *op, from, to int) int {
	for i := from; i < to; i++ {
		p := &r.table[i]
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

// scan grants the ops in the queue whose units are neither locked nor wanted by an earlier one.
// r.mu is held.
func (r *rangeLock) scan() {
	var claims claims
	for o := range r.queue.All() {
		if claims.conflict(o) || !r.try(o) {
			claims.add(o)
			continue
		}
		r.queue.Remove(&o.node)
		r.waiting.Add(-1)
		o.c.deliver(o, granted)
	}
}

// claims are the units that queued ops wait for, a bit for each.
type claims struct{ readers, writers [nUnits / 64]uint64 }

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

// words calls fn with each word of a bitmap that has units of the span, and which bits they are.
func (s span) words(fn func(i int, mask uint64)) {
	for _, part := range [2][2]int{{s.a, s.b}, {s.c, s.d}} {
		for at := part[0]; at < part[1]; {
			end := min(part[1], at&^63+64)
			fn(at>>6, ^uint64(0)<<(at&63)&(^uint64(0)>>(63-(end-1)&63)))
			at = end
		}
	}
}
