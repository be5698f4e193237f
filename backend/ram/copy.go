package ram

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// outcome is how far a step of an IO came.
type outcome uint8

const (
	finished outcome = iota
	paused           // it took long: others have their turn
	blocked          // loans are out, and no frame is free
)

// position is the offset of the next byte of io: its Scratch is the bytes done.
func position(io *backend.IO) int64 { return io.Off + int64(io.Scratch) }

// frameEnd is where the frame of the byte at off ends, or end if that comes first.
func (d *device) frameEnd(off, end int64) int64 { return min(off&^(d.frame-1)+d.frame, end) }

// chunkEnd is where the chunk of the byte at off ends, or end if that comes first.
func (d *device) chunkEnd(off, end int64) int64 { return min(off&^(chunk-1)+chunk, end) }

// slotOf is the slot of the byte at off.
func (d *device) slotOf(off int64) *slot { return &d.slots[off>>d.frames.shift] }

// whole says that [off, end), within a frame, is all that the device has of it.
func (d *device) whole(off, end int64) bool {
	return end-off == d.frame || off&(d.frame-1) == 0 && end == d.info.Size
}

// read fills the segments of io. A frame is held while it is copied from, however many segments it
// goes to.
func (d *device) read(io *backend.IO) {
	c := cursor{segs: io.Segs}
	for off, end := io.Off, io.Off+io.Len; off < end; {
		stop := d.frameEnd(off, end)
		s := d.slotOf(off)
		if s.load().frame() < 0 {
			for ; off < stop; off += c.clear(stop - off) {
			}
			continue
		}
		if frame := s.hold().frame(); frame >= 0 {
			for b := d.frames.memory(frame, 1)[off&(d.frame-1):]; off < stop; {
				n := mem.Copy(c.next(stop-off), b)
				b, off = b[n:], off+int64(n)
			}
		}
		s.release()
	}
}

// write stores what is left of the segments of io.
func (c *channel) write(io *backend.IO) outcome {
	off, end := position(io), io.Off+io.Len
	from := cursor{segs: io.Segs}
	from.skip(off - io.Off)
	for off < end {
		stop := c.d.frameEnd(off, end)
		e, ok := c.edit(off, stop)
		if !ok {
			return blocked
		}
		for b := e.b; len(b) > 0; {
			b = b[mem.Copy(b, from.next(int64(len(b)))):]
		}
		c.finish(&e)
		off = stop
		io.Scratch = uint64(off - io.Off)
	}
	return finished
}

// edit is a change of a part of a frame. The slot is held.
type edit struct {
	s     *slot
	was   place
	b     []byte // the part
	frame int64  // to replace the one there is, -1 if that is changed in place
	off   int64
}

// edit begins to change [off, end), within a frame: in place, if nobody has it on loan, otherwise
// in another frame. It returns false if there is none. The content of the part is undefined until
// the caller has written it; finish ends the change.
func (c *channel) edit(off, end int64) (e edit, ok bool) {
	d, in := c.d, off&(c.d.frame-1)
	e = edit{s: d.slotOf(off), frame: -1, off: off}
	e.was = e.s.hold()
	frame := e.was.frame()
	if frame < 0 || e.was.loans() > 0 {
		var clean bool
		if e.frame, clean, ok = c.fresh(off>>d.frames.shift, frame >= 0); !ok {
			e.s.release()
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

// complete fills a frame but for [from, to) with what another one has there, or zeroes if that is
// -1.
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
		e.s.release()
		return
	}
	c.install(e.s, e.was, e.off, e.frame)
}

// install puts a frame of the channel into the slot of off, which is held and was as given, and
// lets go of it.
func (c *channel) install(s *slot, was place, off, frame int64) {
	if was.frame() < 0 {
		c.d.mapped[off>>chunkShift].Add(1) // before there is something to be found
		s.replace(frame)
		return
	}
	c.retire(s.replace(frame))
}

// retire takes care of a frame that was replaced: it is the channel's, or that of its loans.
func (c *channel) retire(p place) {
	if n := p.loans(); n == 0 || c.d.frames.orphan(p.frame(), n) {
		c.d.frames.poison(p.frame(), 1)
		c.stash.put(p.frame(), 1)
	}
}

// fresh takes a frame for the slot with this number; has says that the slot has one, which loans
// are going to keep. clean says that it reads as zeroes. Preferred is the frame of the same number,
// so that neighbours lie side by side.
func (c *channel) fresh(number int64, has bool) (frame int64, clean, ok bool) {
	f := &c.d.frames
	if has || !f.claim(number) {
		var n int64
		if number, n = c.stash.take(1); n == 0 {
			if number, ok = f.last(has); !ok {
				return 0, false, false
			}
		} else if !has {
			f.spare.Add(1) // the channel has one less
		}
	}
	return number, f.soil(number, 1), true
}

// cursor walks through the memory of segments.
type cursor struct {
	segs []mem.Segment
	b    []byte
}

// next is the next piece of memory, at most n bytes and at least one. The caller knows that there
// is more.
func (c *cursor) next(n int64) []byte {
	for len(c.b) == 0 {
		c.b, c.segs = c.segs[0].B, c.segs[1:]
	}
	b := c.b[:min(n, int64(len(c.b)))]
	c.b = c.b[len(b):]
	return b
}

// skip passes over n bytes.
func (c *cursor) skip(n int64) {
	for n > 0 {
		n -= int64(len(c.next(n)))
	}
}

// clear overwrites the next piece, at most n bytes, with zeroes and returns its length.
func (c *cursor) clear(n int64) int64 {
	b := c.next(n)
	clear(b)
	return int64(len(b))
}
