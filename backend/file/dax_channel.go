package file

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// daxChannel is a channel of the disk that lends, and lets changes wait for loans.
type daxChannel struct {
	d     *daxDevice
	inner backend.Canceler
	wake  func()
	loans int // taken and not returned

	// parked has the changes that wait for loans, in order. waiting says that there are some:
	// whoever returns a loan then sets retry and wakes us.
	parked         backend.List
	waiting, retry atomic.Bool
	one            [1]*backend.IO
	aborted        backend.List // canceled while parked
}

var (
	_ backend.ZeroCopyReader = (*daxChannel)(nil)
	_ backend.Canceler       = (*daxChannel)(nil)
)

// StartZeroCopyRead implements backend.Lender. What the file has grown by since it was opened is
// not mapped.
func (c *daxChannel) StartZeroCopyRead(dst []mem.Segment, off, n int64) ([]mem.Segment, bool) {
	info := c.d.Info()
	if size := min(info.Size, int64(len(c.d.region.Bytes()))); info.Offline || n <= 0 ||
		uint64(off) > uint64(size) || n > size-off {
		return dst, false
	}
	if ok, ended := c.d.fence.lend(off, n); !ok {
		if ended {
			c.d.progress()
		}
		return dst, false
	}
	b, id := c.d.region.Bytes(), c.d.region.ID()
	for end := off + n; off < end; {
		stop := min(off&^(mem.ChunkSize-1)+mem.ChunkSize, end)
		dst = append(dst, mem.Segment{B: b[off:stop:stop], Region: id, File: true})
		off = stop
	}
	c.loans++
	return dst, true
}

// EndZeroCopyRead implements backend.Lender.
func (c *daxChannel) EndZeroCopyRead(_ []mem.Segment, off, n int64) {
	c.loans--
	if c.d.fence.giveBack(off, n) {
		c.d.progress()
	}
}

// changes says that an IO has to leave loans alone.
func changes(io *backend.IO) bool { return io.Op != backend.OpRead && io.Op != backend.OpFlush }

// Submit implements backend.Channel.
func (c *daxChannel) Submit(ios []*backend.IO) int {
	from := 0 // what precedes has been taken
	for i, io := range ios {
		if !changes(io) || c.d.fence.announce(io.Off, io.Len) {
			continue
		}
		if n := c.pass(ios[from:i]); from+n < i {
			c.d.fence.over(io.Off, io.Len)
			return from + n
		}
		c.park(io)
		from = i + 1
	}
	return from + c.pass(ios[from:])
}

// pass gives the disk IOs, of which the changes have been announced. Those that it does not take
// are announced no longer.
func (c *daxChannel) pass(ios []*backend.IO) int {
	if len(ios) == 0 {
		return 0
	}
	n := c.inner.Submit(ios)
	for _, io := range ios[n:] {
		c.leave(io)
	}
	return n
}

// leave ends what a change has announced.
func (c *daxChannel) leave(io *backend.IO) {
	if changes(io) {
		c.d.fence.over(io.Off, io.Len)
	}
}

// park lets a change wait for loans.
func (c *daxChannel) park(io *backend.IO) {
	c.parked.Push(io)
	c.waiting.Store(true)
	if c.d.fence.clear(io.Off, io.Len) { // before waiting was seen
		c.retry.Store(true)
	}
}

// resume goes on with the changes whose loans are back, as far as the disk has room.
func (c *daxChannel) resume() {
	c.retry.Store(false)
	parked := c.parked
	c.parked = backend.List{}
	for io := parked.Pop(); io != nil; io = parked.Pop() {
		if c.d.fence.clear(io.Off, io.Len) {
			if c.one[0] = io; c.inner.Submit(c.one[:]) == 1 {
				continue
			}
			c.retry.Store(true)
		}
		c.parked.Push(io)
	}
	c.one[0] = nil
	c.waiting.Store(c.parked.First() != nil)
}

// Poll implements backend.Channel.
func (c *daxChannel) Poll(done []*backend.IO) int {
	if c.retry.Load() {
		c.resume()
	}
	k := c.aborted.Fill(done)
	n := k + c.inner.Poll(done[k:])
	for _, io := range done[:n] {
		c.leave(io)
	}
	return n
}

// Arm implements backend.Channel.
func (c *daxChannel) Arm() bool {
	return c.aborted.First() == nil && !c.retry.Load() && c.inner.Arm()
}

// Cancel implements backend.Canceler.
func (c *daxChannel) Cancel(io *backend.IO) {
	parked := c.parked
	c.parked = backend.List{}
	found := false
	for p := parked.Pop(); p != nil; p = parked.Pop() {
		if p != io {
			c.parked.Push(p)
			continue
		}
		found = true
		io.Err = fmt.Errorf("%s: %v at %d, waiting for readers: %w", c.d.Info().Identity, io.Op,
			io.Off, backend.ErrAborted)
		c.aborted.Push(io)
	}
	if !found {
		c.inner.Cancel(io)
	}
}

// Close implements backend.Channel.
func (c *daxChannel) Close() error {
	if c.loans != 0 || c.parked.First() != nil || c.aborted.First() != nil {
		return fmt.Errorf(
			"close channel of %s: %d loans, or operations that wait for some, are out",
			c.d.Info().Identity, c.loans)
	}
	if err := c.inner.Close(); err != nil {
		return err
	}
	c.d.change(func(list []*daxChannel) []*daxChannel {
		return slices.DeleteFunc(list, func(o *daxChannel) bool { return o == c })
	})
	return nil
}
