package file

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// daxChannel is a channel of the disk with zero-copy reads, for which changes wait.
type daxChannel struct {
	d     *daxDevice
	inner backend.Canceler
	reads int // zero-copy reads that have not ended

	blocked list.List[backend.IO] // changes that wait for readers, in order
	retry   *backend.Retry
	aborted list.List[backend.IO] // canceled while they were blocked
	one     [1]*backend.IO
}

var (
	_ backend.ZeroCopyReader = (*daxChannel)(nil)
	_ backend.Canceler       = (*daxChannel)(nil)
)

// StartZeroCopyRead implements backend.ZeroCopyReader. What the file has grown by since it was
// opened is not mapped.
func (c *daxChannel) StartZeroCopyRead(dst []mem.Segment, off, n int64) ([]mem.Segment, bool) {
	info := c.d.Info()
	if size := min(info.Size, int64(len(c.d.region.Bytes()))); info.Offline || n <= 0 ||
		uint64(off) > uint64(size) || n > size-off {
		return dst, false
	}
	if ok, last := c.d.ranges.addReader(off, n); !ok {
		if last {
			c.d.blocked.Wake()
		}
		return dst, false
	}
	b, id := c.d.region.Bytes(), c.d.region.ID()
	for end := off + n; off < end; {
		stop := min(off&^(mem.ChunkSize-1)+mem.ChunkSize, end)
		dst = append(dst, mem.Segment{B: b[off:stop:stop], Region: id, File: true})
		off = stop
	}
	c.reads++
	return dst, true
}

// EndZeroCopyRead implements backend.ZeroCopyReader.
func (c *daxChannel) EndZeroCopyRead(_ []mem.Segment, off, n int64) {
	c.reads--
	if c.d.ranges.removeReader(off, n) {
		c.d.blocked.Wake()
	}
}

// WriterWaits implements backend.ZeroCopyReader.
func (c *daxChannel) WriterWaits() bool { return c.d.blocked.Waiting() }

// changes reports whether an IO changes blocks.
func changes(io *backend.IO) bool { return io.Op != backend.OpRead && io.Op != backend.OpFlush }

// Submit implements backend.Channel.
func (c *daxChannel) Submit(ios []*backend.IO) int {
	from := 0 // what precedes has been taken
	for i, io := range ios {
		if !changes(io) || c.d.ranges.addChange(io.Off, io.Len) {
			continue
		}
		if n := c.submit(ios[from:i]); from+n < i {
			c.d.ranges.removeChange(io.Off, io.Len)
			return from + n
		}
		c.block(io)
		from = i + 1
	}
	return from + c.submit(ios[from:])
}

// submit gives IOs to the disk. Their changes have been added to the ranges; those of IOs that the
// disk does not take are removed.
func (c *daxChannel) submit(ios []*backend.IO) int {
	if len(ios) == 0 {
		return 0
	}
	n := c.inner.Submit(ios)
	for _, io := range ios[n:] {
		c.removeChange(io)
	}
	return n
}

func (c *daxChannel) removeChange(io *backend.IO) {
	if changes(io) {
		c.d.ranges.removeChange(io.Off, io.Len)
	}
}

// block makes a change wait for readers.
func (c *daxChannel) block(io *backend.IO) {
	c.blocked.Push(io, &io.Node)
	c.retry.Wait(true)
	if c.d.ranges.clear(io.Off, io.Len) { // before it was visible that the channel waits
		c.retry.Set()
	}
}

// retryBlocked submits the changes whose readers have ended, as far as the disk has room.
func (c *daxChannel) retryBlocked() {
	for io := range c.blocked.All() {
		if !c.d.ranges.clear(io.Off, io.Len) {
			continue
		}
		c.blocked.Remove(&io.Node)
		if c.one[0] = io; c.inner.Submit(c.one[:]) == 0 {
			c.blocked.PushFirst(io, &io.Node)
			c.retry.Set() // full: again after this Poll, which makes room
			break
		}
	}
	c.one[0] = nil
	c.retry.Wait(!c.blocked.Empty())
}

// Poll implements backend.Channel.
func (c *daxChannel) Poll(done []*backend.IO) int {
	if c.retry.Take() {
		c.retryBlocked()
	}
	k := c.aborted.Fill(done)
	n := k + c.inner.Poll(done[k:])
	for _, io := range done[:n] {
		c.removeChange(io)
	}
	return n
}

// Arm implements backend.Channel.
func (c *daxChannel) Arm() bool {
	return c.aborted.Empty() && !c.retry.Due() && c.inner.Arm()
}

// Cancel implements backend.Canceler.
func (c *daxChannel) Cancel(io *backend.IO) {
	for blocked := range c.blocked.All() {
		if blocked == io {
			c.blocked.Remove(&io.Node)
			io.Err = fmt.Errorf("%s: %v at %d, waiting for readers: %w", c.d.Info().Identity,
				io.Op, io.Off, backend.ErrAborted)
			c.aborted.Push(io, &io.Node)
			return
		}
	}
	c.inner.Cancel(io)
}

// Close implements backend.Channel.
func (c *daxChannel) Close() error {
	if c.reads != 0 || !c.blocked.Empty() || !c.aborted.Empty() {
		return fmt.Errorf("close channel of %s: %d zero-copy reads, or operations that wait for "+
			"some, are outstanding", c.d.Info().Identity, c.reads)
	}
	if err := c.inner.Close(); err != nil {
		return err
	}
	c.retry.Leave()
	return nil
}
