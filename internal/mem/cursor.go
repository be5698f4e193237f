package mem

// Cursor walks through the bytes of segments in order. It refers to the segments and does not
// change them; the zero Cursor is at the end. It is a value: a copy goes on from the same place.
type Cursor struct {
	segs []Segment // those not passed, the current one first; none of them is empty
	off  int       // bytes of the current one that are passed
}

// NewCursor is a cursor at byte off of segs, or at the end if there are fewer.
func NewCursor(segs []Segment, off int) Cursor {
	c := Cursor{segs: segs}
	c.settle()
	if off > 0 {
		c.Skip(off)
	}
	return c
}

// settle passes segments of which nothing is left.
func (c *Cursor) settle() {
	for len(c.segs) > 0 && c.off == len(c.segs[0].B) {
		c.segs, c.off = c.segs[1:], 0
	}
}

// Segment is the segment in which the next byte lies, nil at the end.
func (c *Cursor) Segment() *Segment {
	if len(c.segs) == 0 {
		return nil
	}
	return &c.segs[0]
}

// Next passes the next contiguous bytes, at most n of them, and returns them: nil at the end.
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
	c.settle()
	return b[:len(b):len(b)]
}

// Skip passes n bytes, or all that are left.
func (c *Cursor) Skip(n int) {
	for n > 0 && len(c.segs) > 0 {
		n -= len(c.Next(n))
	}
}

// CopyFrom fills the next bytes with b, by Copy, and returns how many there were.
func (c *Cursor) CopyFrom(b []byte) (n int) {
	for n < len(b) && len(c.segs) > 0 {
		n += Copy(c.Next(len(b)-n), b[n:])
	}
	return n
}

// CopyTo fills b with the next bytes, by Copy, and returns how many there were.
func (c *Cursor) CopyTo(b []byte) (n int) {
	for n < len(b) && len(c.segs) > 0 {
		n += Copy(b[n:], c.Next(len(b)-n))
	}
	return n
}

// Clear overwrites the next n bytes, or all that are left, with zeroes.
func (c *Cursor) Clear(n int) {
	for n > 0 && len(c.segs) > 0 {
		b := c.Next(n)
		clear(b)
		n -= len(b)
	}
}

// Rest is the number of bytes to the end.
func (c *Cursor) Rest() int { return Length(c.segs) - c.off }
