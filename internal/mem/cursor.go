package mem

import "sync/atomic"

// Cursor walks through the bytes of segments in order. It refers to the segments and does not
// change them. The zero Cursor is at the end. A copy continues from the same position.
type Cursor struct {
	segs []Segment // the current segment, which is not empty, and the segments after it
	off  int       // position in the current segment
}

// NewCursor returns a cursor at byte off of segs, or at the end if there are fewer bytes.
func NewCursor(segs []Segment, off int) Cursor {
	c := Cursor{segs: segs}
	c.skipEmpty()
	if off > 0 {
		c.Skip(off)
	}
	return c
}

// skipEmpty moves on to the next byte at the end of a segment.
func (c *Cursor) skipEmpty() {
	for len(c.segs) > 0 && c.off == len(c.segs[0].B) {
		c.segs, c.off = c.segs[1:], 0
	}
}

// Segment returns the segment of the next byte, nil at the end.
func (c *Cursor) Segment() *Segment {
	if len(c.segs) == 0 {
		return nil
	}
	return &c.segs[0]
}

// Next returns the next contiguous bytes, at most n, and moves past them; nil at the end.
func (c *Cursor) Next(n int) []byte {
	if len(c.segs) == 0 {
		return nil
	}
	b := c.segs[0].B[c.off:]
	if n < len(b) {
		c.off += n
		return b[:n:n]
	}
	c.segs, c.off = c.segs[1:], 0
	c.skipEmpty()
	return b[:len(b):len(b)]
}

// Skip moves past n bytes, or to the end if there are fewer.
func (c *Cursor) Skip(n int) {
	for n > 0 && len(c.segs) > 0 {
		n -= len(c.Next(n))
	}
}

// CopyFrom copies b to the next bytes, by Copy, and returns the number of bytes copied.
func (c *Cursor) CopyFrom(b []byte) (n int) {
	for n < len(b) && len(c.segs) > 0 {
		n += Copy(c.Next(len(b)-n), b[n:])
	}
	return n
}

// CopyTo copies the next bytes to b, by Copy, and returns the number of bytes copied.
func (c *Cursor) CopyTo(b []byte) (n int) {
	for n < len(b) && len(c.segs) > 0 {
		n += Copy(b[n:], c.Next(len(b)-n))
	}
	return n
}

// Clear overwrites the next n bytes, or all to the end, with zeroes.
func (c *Cursor) Clear(n int) {
	for n > 0 && len(c.segs) > 0 {
		b := c.Next(n)
		clear(b)
		n -= len(b)
	}
}

// Rest returns the number of bytes to the end.
func (c *Cursor) Rest() int { return Length(c.segs) - c.off }

// Copy copies payload, as the built-in copy does. All copies of commands' data in this process are
// by Copy, so that tests can check zero-copy paths. System calls and devices do not count.
func Copy(dst, src []byte) int {
	n := copy(dst, src)
	if invariants {
		copied.Add(int64(n))
	}
	return n
}

// CopySegments copies src to dst by Copy, up to the length of the shorter one.
func CopySegments(dst, src []Segment) {
	to := NewCursor(dst, 0)
	for i := range src {
		if to.CopyFrom(src[i].B) < len(src[i].B) {
			return
		}
	}
}

var copied atomic.Int64

// Copied returns the number of bytes copied by Copy so far. ok reports whether they are counted,
// which needs the build tag invariants.
func Copied() (n int64, ok bool) { return copied.Load(), invariants }
