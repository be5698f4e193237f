package ram

import "github.com/nvmf-target/nvmf-target/internal/mem"

// zeroes is the size, in bytes, of the memory at the end of the region that zero-copy reads return
// for slots without frames. It is never written, so all of it is the kernel's one page of zeroes.
const zeroes = 1 << 20

// outside reports whether the range is invalid.
func (d *device) outside(off, n int64) bool {
	return n <= 0 || uint64(off) > uint64(d.info.Size) || n > d.info.Size-off
}

// StartZeroCopyRead implements ZeroCopyReader. It refuses for waiting changes or too many reads.
func (c *channel) StartZeroCopyRead(dst []mem.Segment, off, n int64) ([]mem.Segment, bool) {
	d, own := c.d, len(dst)
	if d.outside(off, n) || d.blocked.Waiting() {
		return dst, false
	}
	frames := int64(0)
	for at, end := off, off+n; at < end; {
		if d.mapped[at>>chunkShift].Load() == 0 {
			stop := d.chunkEnd(at, end)
			dst = d.appendZeroes(dst, own, stop-at)
			at = stop
			continue
		}
		stop := d.frameEnd(at, end)
		frame, ok := d.slotOf(at).addReader()
		switch {
		case !ok:
			return d.refuseRead(dst, own, off)
		case frame < 0:
			dst = d.appendZeroes(dst, own, stop-at)
		default:
			frames++
			dst = d.appendPart(dst, own, frame<<d.frames.shift+at&(d.frame-1), stop-at)
		}
		at = stop
	}
	if !c.takeReadable(frames) {
		return d.refuseRead(dst, own, off)
	}
	c.reads++
	return dst, true
}

// refuseRead undoes a read from off on. dst has a part of it after the first own segments.
func (d *device) refuseRead(dst []mem.Segment, own int, off int64) ([]mem.Segment, bool) {
	d.removeReaders(dst[own:], off)
	clear(dst[own:])
	d.blocked.Wake()
	return dst[:own], false
}

// appendPart appends n bytes at off of the region to dst, or extends the last segment if that ends
// there and is not one of the first own.
func (d *device) appendPart(dst []mem.Segment, own int, off, n int64) []mem.Segment {
	b := d.frames.region.Bytes()
	if k := len(dst); k > own && off&(chunk-1) != 0 {
		if first := d.offset(dst[k-1].B); first+int64(len(dst[k-1].B)) == off {
			dst[k-1].B = b[first : off+n : off+n]
			return dst
		}
	}
	return append(dst, mem.Segment{B: b[off : off+n : off+n], Region: d.frames.region.ID()})
}

// appendZeroes appends n bytes of memory that is never written.
func (d *device) appendZeroes(dst []mem.Segment, own int, n int64) []mem.Segment {
	b := d.frames.region.Bytes()[d.zeroesAt:]
	if k := len(dst); k > own && d.offset(dst[k-1].B) == d.zeroesAt {
		if m := min(n, zeroes-int64(len(dst[k-1].B))); m > 0 {
			m += int64(len(dst[k-1].B))
			n -= m - int64(len(dst[k-1].B))
			dst[k-1].B = b[:m:m]
		}
	}
	for ; n > 0; n -= zeroes {
		m := min(zeroes, n)
		dst = append(dst, mem.Segment{B: b[:m:m], Region: d.frames.region.ID()})
	}
	return dst
}

// offset returns the offset of b in the region.
func (d *device) offset(b []byte) int64 { return int64(mem.Addr(b) - d.base) }

func (c *channel) EndZeroCopyRead(segs []mem.Segment, off, _ int64) {
	c.reads--
	c.putReadable(c.d.removeReaders(segs, off))
	c.d.blocked.Wake()
}

func (c *channel) WriterWaits() bool { return c.d.blocked.Waiting() }

// removeReaders ends a read of the slots from off with frames in segs, and returns their number.
func (d *device) removeReaders(segs []mem.Segment, off int64) (frames int64) {
	for i := range segs {
		at, stop := d.offset(segs[i].B), off+int64(len(segs[i].B))
		if at >= d.zeroesAt {
			off = stop
			continue
		}
		for off < stop {
			next := d.frameEnd(off, stop)
			if frame := at >> d.frames.shift; !d.slotOf(off).removeReader(frame) {
				d.frames.removeReader(frame)
			}
			at, off = at+next-off, next
			frames++
		}
	}
	return frames
}
