package ram

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// outcome is the result of a step of an IO.
type outcome uint8

const (
	finished outcome = iota
	yielded          // there is more to do, but others come first
	blocked          // zero-copy reads are outstanding, and no frame is free
)

// position returns the offset of the next byte of io. Its Scratch is the number of bytes done.
func position(io *backend.IO) int64 { return io.Off + int64(io.Scratch) }

// frameEnd returns where the frame of the byte at off ends, or end if that comes first.
func (d *device) frameEnd(off, end int64) int64 { return min(off&^(d.frame-1)+d.frame, end) }

// chunkEnd returns where the chunk of the byte at off ends, or end if that comes first.
func (d *device) chunkEnd(off, end int64) int64 { return min(off&^(chunk-1)+chunk, end) }

// slotOf returns the slot of the byte at off.
func (d *device) slotOf(off int64) *slot { return &d.slots[off>>d.frames.shift] }

// whole reports whether [off, end), within a frame, is the device's whole part of that frame.
func (d *device) whole(off, end int64) bool {
	return end-off == d.frame || off&(d.frame-1) == 0 && end == d.info.Size
}

// read fills the next segments of io, and locks a slot once while its frame is copied.
func (d *device) read(io *backend.IO) outcome {
	off, end := position(io), io.Off+io.Len
	c := mem.NewCursor(io.Segs, int(off-io.Off))
	for most := off + stepBytes; off < min(end, most); {
		n, in := d.frameEnd(off, end)-off, off&(d.frame-1)
		s := d.slotOf(off)
		if s.load().frame() < 0 {
			c.Clear(int(n))
		} else {
			if frame := s.lock().frame(); frame >= 0 {
				c.CopyFrom(d.frames.memory(frame, 1)[in : in+n])
			} else {
				c.Clear(int(n))
			}
			s.unlock()
		}
		off += n
	}
	return next(io, off)
}

// next is the outcome of a step up to off that was not blocked.
func next(io *backend.IO, off int64) outcome {
	if io.Scratch = uint64(off - io.Off); off < io.Off+io.Len {
		return yielded
	}
	return finished
}

// write stores the next segments of io.
func (c *channel) write(io *backend.IO) outcome {
	off, end := position(io), io.Off+io.Len
	from := mem.NewCursor(io.Segs, int(off-io.Off))
	for most := off + stepBytes; off < min(end, most); {
		stop := c.d.frameEnd(off, end)
		e, ok := c.edit(off, stop)
		if !ok {
			return blocked
		}
		from.CopyTo(e.b)
		c.finish(&e)
		off = stop
		io.Scratch = uint64(off - io.Off)
	}
	return next(io, off)
}

// edit is a change of a part of a frame. The slot is locked.
type edit struct {
	s     *slot
	was   slotWord
	b     []byte // the part
	frame int64  // replaces the frame of the slot; -1 for a change in place
	off   int64
}

// edit begins to change [off, end), within a frame: in place if the frame has no readers, otherwise
// in another frame. It returns false if there is none. The content of the part is undefined until
// the caller has written it; finish ends the change.
func (c *channel) edit(off, end int64) (e edit, ok bool) {
	d, in := c.d, off&(c.d.frame-1)
	e = edit{s: d.slotOf(off), frame: -1, off: off}
	e.was = e.s.lock()
	frame := e.was.frame()
	if frame < 0 || e.was.readers() > 0 {
		var clean bool
		if e.frame, clean, ok = c.newFrame(off>>d.frames.shift, frame >= 0); !ok {
			e.s.unlock()
			return e, false
		}
		if !clean || frame >= 0 {
			d.complete(e.frame, frame, in, in+end-off)
		}
		frame = e.frame
	}
	e.b = d.frames.memory(frame, 1)[in : in+end-off]
	return e, true
}

// complete fills a frame except [from, to) as the old one, or with zeroes if old is -1.
func (d *device) complete(frame, old, from, to int64) {
	b := d.frames.memory(frame, 1)
	if old < 0 {
		clear(b[:from])
		clear(b[to:])
		return
	}
	o := d.frames.memory(old, 1)
	mem.Copy(b[:from], o)
	mem.Copy(b[to:], o[to:])
}

// finish makes a change visible.
func (c *channel) finish(e *edit) {
	if e.frame < 0 {
		e.s.unlock()
		return
	}
	c.install(e.s, e.was, e.off, e.frame)
}

// install puts a frame of the channel into the locked slot of off. was is its old content.
func (c *channel) install(s *slot, was slotWord, off, frame int64) {
	if was.frame() < 0 {
		c.d.mapped[off>>chunkShift].Add(1) // before the frame can be found
		s.replace(frame)
		return
	}
	c.retire(s.replace(frame))
}

// retire puts a frame that was replaced into the cache, or leaves it to its readers.
func (c *channel) retire(was slotWord) {
	if n := was.readers(); n == 0 || c.d.frames.leaveToReaders(was.frame(), n) {
		c.d.frames.poison(was.frame(), 1)
		c.cache.put(was.frame(), 1)
	}
}

// newFrame takes a frame for the slot with this number. replaces reports whether the slot has one,
// which is left to its readers. clean reports whether the new frame reads as zeroes. The frame of
// the same number is preferred, so that neighbors are adjacent.
func (c *channel) newFrame(number int64, replaces bool) (frame int64, clean, ok bool) {
	f := &c.d.frames
	if replaces || !f.claim(number) {
		var n int64
		if number, n = c.cache.take(1); n == 0 {
			if number, ok = c.last(replaces); !ok {
				return 0, false, false
			}
		} else if !replaces {
			f.spare.Add(1) // the channel has one less
		}
	}
	return number, f.markDirty(number, 1), true
}
