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

// rangeLock serializes commands that touch the same blocks if one of them writes, so that none sees
// a torn block (NVM Express Base Specification 1.4, section 6.4: AWUN is at least one block): a
// buffered read may see half of a racing write, and a direct one depends on the disk. Readers
// share. The unit is a page or a block, whichever is larger. So the page cache, when it zeroes
// parts of pages, never touches a page that another command writes directly.
//
// An op locks its units one at a time, in ascending order, so ops never wait in a circle. A free
// unit costs one atomic operation. An op that meets a locked unit keeps the units it has, and
// queues for that one. Each unit has its own queue, so no op is overtaken there. The unlock of a
// unit gives it to the first op in its queue. The channel of that op continues with the next unit.
//
// An op with many units could wait at each of them for ops that came later. So the first such op
// that has to wait is the gate: ops that come later and overlap it follow it until it has all of
// its units. An op follows once, and holds nothing while it does.
//
// No step depends on the number of ops that wait:
//
//	lock, granted    at most nUnits atomic operations, and one queue joined
//	unlock           at most nUnits atomic operations, for each unit at most grants ops granted
//	end of the gate  at most tellBatch ops go on, the last of which tells the next ones
//
// Waiting readers are granted a few at a time: each passes the unit on to the next ones when its
// channel handles the grant. So n readers are granted in the logarithm of n turns.
//
// An op takes the cost of visited units, and grants to others, from the turn of its channel.
type rangeLock struct {
	shift uint
	// units has the sum of holds of each unit, 0 if it is free, and queued while others wait.
	units [nUnits]atomic.Int32
	gate  atomic.Pointer[op] // set under mu

	mu sync.Mutex // held for as long as it takes to grant one unit, or to join one list
	// queues has the ops that wait for each unit; mu guards it. It is made when the first op waits.
	// The queue of a unit is empty unless the unit is queued.
	queues *[nUnits]list.List[op]
}

const (
	hold      int32 = 1 // of a reader
	exclusive int32 = 1 << 29
	// queued is set, under mu, while ops wait for the unit. Then it is locked under mu only.
	queued int32 = 1 << 30

	// grants is the number of ops that a unit is given to at once, and grantSteps the cost of each.
	grants     = 2
	grantSteps = 8
	// wide is the minimum number of units of a gate.
	wide = 32
)

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

// units returns the number of units in the span.
func (s span) units() int { return s.b - s.a + s.d - s.c }

// overlaps reports whether two spans have a unit in common.
func (s span) overlaps(o span) bool {
	common := func(a, b, c, d int) bool { return max(a, c) < min(b, d) }
	return common(s.a, s.b, o.a, o.b) || common(s.a, s.b, o.c, o.d) ||
		common(s.c, s.d, o.a, o.b) || common(s.c, s.d, o.c, o.d)
}

// lock locks the range of o, exclusively if o.write. If it returns false, o waits and is delivered
// to its channel. The channel calls granted when o has the unit that it waited for, and passed when
// the gate that it followed has passed.
func (r *rangeLock) lock(o *op) bool {
	o.span = r.span(o.io.Off, o.io.Len)
	o.unit = o.span.a
	if r.gate.Load() != nil && r.follow(o) {
		return false
	}
	return r.advance(o)
}

// follow makes o follow the gate if they overlap.
func (r *rangeLock) follow(o *op) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.gate.Load()
	if g == nil || !g.span.overlaps(o.span) {
		return false
	}
	g.followers.Push(o, &o.node)
	return true
}

// passed continues an op after its gate has passed. The result is as for lock.
func (r *rangeLock) passed(o *op) bool {
	o.tell(passed)
	return r.advance(o)
}

// granted continues an op with the unit that it waited for. The result is as for lock.
func (r *rangeLock) granted(o *op) bool {
	if !o.write {
		r.grant(o.c, o.unit)
	}
	o.unit++
	return r.advance(o)
}

// advance locks the units of o from o.unit on, up to one that is already locked.
func (r *rangeLock) advance(o *op) bool {
	for end := max(o.span.b, o.span.d); o.unit < end; o.unit++ {
		if o.unit == o.span.b {
			o.unit = o.span.c
		}
		o.c.steps--
		if !r.take(o) {
			return false
		}
	}
	if r.gate.Load() == o {
		r.mu.Lock()
		r.gate.Store(nil)
		r.mu.Unlock()
		o.tell(passed)
	}
	return true
}

// take locks o.unit, or queues o for it. An op that is queued may be delivered before take returns.
func (r *rangeLock) take(o *op) bool {
	u := &r.units[o.unit]
	for n := u.Load(); o.fits(n); n = u.Load() {
		if u.CompareAndSwap(n, n+o.hold()) {
			return true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for { // repeats only if a unit that was not queued has changed
		n := u.Load()
		switch {
		case o.fits(n):
			if u.CompareAndSwap(n, n+o.hold()) {
				return true
			}
		case n&queued != 0 || u.CompareAndSwap(n, n|queued):
			if r.queues == nil {
				r.queues = new([nUnits]list.List[op])
			}
			if r.gate.Load() == nil && o.span.units() >= wide {
				r.gate.Store(o)
			}
			r.queues[o.unit].Push(o, &o.node)
			return false
		}
	}
}

func (r *rangeLock) unlock(o *op) {
	r.free(o, o.span.a, o.span.b)
	r.free(o, o.span.c, o.span.d)
}

func (r *rangeLock) free(o *op, from, to int) {
	o.c.steps -= to - from
	for i := from; i < to; i++ {
		if r.units[i].Add(-o.hold()) == queued { // o was the last op that had it
			r.grant(o.c, i)
		}
	}
}

// grant gives a unit to at most grants waiting ops that can have it. c is the caller's channel.
func (r *rangeLock) grant(c *channel, unit int) {
	u := &r.units[unit]
	if u.Load()&queued == 0 {
		return
	}
	var to [grants]*op
	r.mu.Lock()
	for i := range to {
		c.steps -= grantSteps
		o := r.queues[unit].First()
		if o == nil || !o.fits(u.Load()&^queued) {
			break
		}
		to[i] = r.queues[unit].Pop()
		n := o.hold()
		if r.queues[unit].Empty() {
			n -= queued
		}
		u.Add(n)
	}
	r.mu.Unlock()
	for _, o := range to {
		if o != nil {
			o.c.deliver(o, granted)
		}
	}
}

// fits reports whether o can have a unit in state n without queuing.
func (o *op) fits(n int32) bool { return n == 0 || !o.write && n < exclusive }

// hold is the amount that o adds to the state of a unit that it has.
func (o *op) hold() int32 {
	if o.write {
		return exclusive
	}
	return hold
}
