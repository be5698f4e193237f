package ram

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// The path of a write without a copy:
//
//	StartZeroCopyWrite  takes frames from the channel's frame cache
//	Submit              commits: puts each frame into its slot by one change of a word. The
//	                    replaced frame goes to the frame cache, or is left to its readers. Ends
//	                    of the range within a frame are copied
//	AbortZeroCopyWrite  or puts them back into the cache: the received data was never visible
//
// None of this waits: if there are no frames, or if another operation is blocked for lack of one,
// StartZeroCopyWrite refuses and the write is copied.

// StartZeroCopyWrite implements backend.ZeroCopyWriter. It copies ranges without a whole frame.
func (c *channel) StartZeroCopyWrite(dst []mem.Segment, off, n int64) ([]mem.Segment, bool) {
	d, own := c.d, len(dst)
	if d.outside(off, n) || (off+d.frame-1)&^(d.frame-1)+d.frame > off+n || d.blocked.Waiting() {
		return dst, false
	}
	in := off & (d.frame - 1)
	for left := (in + n + d.frame - 1) >> d.frames.shift; left > 0; {
		first, got := c.cache.take(left)
		if got == 0 {
			c.putBack(dst[own:])
			clear(dst[own:])
			return dst[:own], false
		}
		left -= got
		d.frames.each(first, got, func(first, got int64) {
			d.frames.markDirty(first, got)
			part := min(got<<d.frames.shift-in, n)
			dst = d.appendPart(dst, own, first<<d.frames.shift+in, part)
			in, n = 0, n-part
		})
	}
	c.writes++
	return dst, true
}

func (c *channel) AbortZeroCopyWrite(segs []mem.Segment) {
	c.writes--
	c.putBack(segs)
	c.trimCache()
}

// putBack returns the frames of a zero-copy write to the cache.
func (c *channel) putBack(segs []mem.Segment) {
	shift := c.d.frames.shift
	for i := range segs {
		off := c.d.offset(segs[i].B)
		first := off >> shift
		n := (off+int64(len(segs[i].B))+c.d.frame-1)>>shift - first
		c.d.frames.poison(first, n)
		c.cache.put(first, n)
	}
}

// commit makes the memory of a zero-copy write the content of its range.
func (c *channel) commit(io *backend.IO) {
	io.Flags &^= backend.ZeroCopy
	c.writes--
	d, from, added := c.d, mem.NewCursor(io.Segs, 0), int64(0)
	for off, end := io.Off, io.Off+io.Len; off < end; {
		stop := d.frameEnd(off, end)
		b := from.Next(int(stop - off))
		frame, in := d.offset(b)>>d.frames.shift, off&(d.frame-1)
		s := d.slotOf(off)
		was := s.lock()
		old := was.frame()
		whole := d.whole(off, stop)
		if !whole && old >= 0 && was.readers() == 0 {
			mem.Copy(d.frames.memory(old, 1)[in:], b)
			s.unlock()
			c.cache.put(frame, 1)
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

// trimCache keeps the frame cache small, and empties it while any channel has blocked operations.
func (c *channel) trimCache() {
	had := c.cache.total
	c.cache.trim()
	if c.d.blocked.Waiting() {
		c.cache.evict(len(c.cache.runs))
	}
	if c.cache.total < had {
		c.d.blocked.Wake()
	}
}
