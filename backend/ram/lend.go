package ram

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// The way of a write that meets a loan:
//
//	Submit         the stripe has loans: the channel says that it waits, and the write counts as a waiter of the stripe
//	Lend           refuses granules with waiters, on every reactor, so that the loans of a waited-for stripe only become fewer
//	Return         the last loan of such a stripe: every channel that waits is told to try again, and its reactor is woken
//	Poll           the channel tries again, in the order in which the writes came
//
// A write changes granule after granule and keeps those it has changed while it waits for the next: only blocks are atomic.

// zeroes is the size of the memory that is lent for what was never written, at the end of the region. Nobody writes to it, so all of
// it is the kernel's one page of zeroes.
const zeroes = 1 << 20

// Lend implements backend.Lender.
func (c *channel) Lend(dst []mem.Segment, off, n int64) ([]mem.Segment, bool) {
	d, end := c.d, off+n
	if n <= 0 || uint64(off) > uint64(d.info.Size) || n > d.info.Size-off {
		return dst, false
	}
	if at := d.stripes.lend(off, end); at < end {
		d.giveBack(off, at)
		return dst, false
	}
	c.loans++
	for off < end {
		stop := min(off&^(chunk-1)+chunk, end)
		if d.written[off>>chunkShift].Load() {
			dst = append(dst, mem.Segment{B: d.b[off:stop:stop], Region: d.region.ID()})
			off = stop
			continue
		}
		for ; off < stop; off += zeroes {
			b := d.zeroes[:min(zeroes, stop-off)]
			dst = append(dst, mem.Segment{B: b[:len(b):len(b)], Region: d.region.ID()})
		}
		off = stop
	}
	return dst, true
}

// Return implements backend.Lender.
func (c *channel) Return(off, n int64) {
	c.loans--
	c.d.giveBack(off, off+n)
}

// giveBack returns loans of [off, end) and wakes those who wait for them.
func (d *device) giveBack(off, end int64) {
	if !d.stripes.giveBack(off, end) {
		return
	}
	for _, c := range *d.channels.Load() {
		if c.waiting.Load() {
			c.retry.Store(true)
			c.wake()
		}
	}
}

// join makes c one of those that giveBack wakes, leave ends that.
func (d *device) join(c *channel) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := append(slices.Clone(*d.channels.Load()), c)
	d.channels.Store(&list)
}

func (d *device) leave(c *channel) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*d.channels.Load()), func(o *channel) bool { return o == c })
	d.channels.Store(&list)
}

// change makes a step of an IO that changes something. One that meets a loan waits from then on.
func (c *channel) change(io *backend.IO) {
	waiting := c.waiting.Load()
	how := c.step(io, waiting)
	if how == blocked && !waiting {
		c.waiting.Store(true) // before the IO counts as a waiter: from then on the channel may be woken
		if how = c.step(io, true); how != blocked {
			c.waiting.Store(false)
		}
	}
	switch how {
	case finished:
		c.done.Push(io)
	case paused:
		c.long.Push(io)
		c.wake() // nobody else says that there is more to do
	case blocked:
		c.parked.Push(io)
	}
}

func (c *channel) step(io *backend.IO, wait bool) (how outcome) {
	if io.Op == backend.OpWrite {
		return c.d.write(io, wait)
	}
	how, io.Err = c.d.zero(io, wait)
	for how == paused && io.Len <= chunk {
		how, io.Err = c.d.zero(io, wait)
	}
	return how
}

// resume tries everything again that waits for loans.
func (c *channel) resume() {
	c.retry.Store(false)
	parked := c.parked
	c.parked = backend.List{}
	for io := parked.Pop(); io != nil; io = parked.Pop() {
		c.change(io)
	}
	if c.parked.First() == nil {
		c.waiting.Store(false)
	}
}
