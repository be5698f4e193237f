package ram

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// The way of a write that copies nothing:
//
//	Reserve    frames of the channel's stash, of which nobody else knows; the transport receives into them
//	Submit     frame by frame they go into the slots, each by one change of a word; what they replace goes to the stash, or, while on
//	           loan, to the last loan. Ends of the range that are less than a frame are copied
//	Cancel     or they go back to the stash: whatever was received, nobody has seen it
//
// Nothing of that waits: if no frames are to be had, or somebody waits for one, Reserve says so and
// the write is copied.

// StartZeroCopyWrite implements backend.Receiver. A range without a whole frame is rather copied.
func (c *channel) StartZeroCopyWrite(dst []mem.Segment, off, n int64) ([]mem.Segment, bool) {
	d, own := c.d, len(dst)
	if d.outside(off, n) || (off+d.frame-1)&^(d.frame-1)+d.frame > off+n || d.waiters.Load() != 0 {
		return dst, false
	}
	in := off & (d.frame - 1)
	for left := (in + n + d.frame - 1) >> d.frames.shift; left > 0; {
		first, got := c.stash.take(left)
		if got == 0 {
			c.putBack(dst[own:])
			clear(dst[own:])
			return dst[:own], false
		}
		left -= got
		d.frames.each(first, got, func(first, got int64) {
			d.frames.soil(first, got)
			part := min(got<<d.frames.shift-in, n)
			dst = d.appendPart(dst, own, first<<d.frames.shift+in, part)
			in, n = 0, n-part
		})
	}
	c.reserved++
	return dst, true
}

// AbortZeroCopyWrite implements backend.Receiver.
func (c *channel) AbortZeroCopyWrite(segs []mem.Segment) {
	c.reserved--
	c.putBack(segs)
	c.tidy()
}

// putBack takes reserved frames back to the stash.
func (c *channel) putBack(segs []mem.Segment) {
	shift := c.d.frames.shift
	for i := range segs {
		off := c.d.offset(segs[i].B)
		first := off >> shift
		n := (off+int64(len(segs[i].B))+c.d.frame-1)>>shift - first
		c.d.frames.poison(first, n)
		c.stash.put(first, n)
	}
}

// adopt writes what was received into reserved memory.
func (c *channel) adopt(io *backend.IO) {
	io.Flags &^= backend.ZeroCopy
	c.reserved--
	d, from, added := c.d, cursor{segs: io.Segs}, int64(0)
	for off, end := io.Off, io.Off+io.Len; off < end; {
		stop := d.frameEnd(off, end)
		b := from.next(stop - off)
		frame, in := d.offset(b)>>d.frames.shift, off&(d.frame-1)
		s := d.slotOf(off)
		was := s.hold()
		old := was.frame()
		whole := d.whole(off, stop)
		if !whole && old >= 0 && was.loans() == 0 {
			mem.Copy(d.frames.memory(old, 1)[in:], b)
			s.release()
			c.stash.put(frame, 1)
		} else {
			if !whole {
				d.complete(frame, old, in, in+stop-off)
			}
			if old < 0 {
				added++ // the channel has one less
			}
			c.install(s, was, off, frame)
		}
		off = stop
	}
	if added > 0 {
		d.frames.spare.Add(added)
	}
}

// tidy keeps the stash small, and leaves nothing in it that somebody waits for.
func (c *channel) tidy() {
	c.stash.trim()
	if c.d.waiters.Load() != 0 && len(c.stash.runs) > 0 {
		c.stash.shed(len(c.stash.runs))
		c.d.progress()
	}
}
