package ram

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// Small writes of one Submit are made several at a time: their slots are held, then all is copied,
// then the slots are let go. Letting go waits until what was written before has left the processor
// for memory that mostly is in no cache; so that is waited for once, and not at each write.

// batchMost is how many slots a channel holds at most, for the time of as many copies of up to
// minFrame.
const batchMost = 8

// batch is writes whose slots are held.
type batch struct {
	ios [batchMost]*backend.IO
	to  [batchMost][]byte
	s   [batchMost]*slot
	n   int
}

// gather takes a write into the batch, if it can be made in place within a frame and its slot is
// free. Whoever holds one slot must not wait for another.
func (c *channel) gather(io *backend.IO) bool {
	d, w := c.d, &c.batch
	end := io.Off + io.Len
	if io.Len == 0 || io.Len > minFrame || d.frameEnd(io.Off, end) != end {
		return false
	}
	s := d.slotOf(io.Off)
	was, ok := s.try()
	if !ok {
		return false
	}
	frame := was.frame()
	if frame < 0 || was.loans() > 0 {
		s.release()
		return false
	}
	in := io.Off & (d.frame - 1)
	w.ios[w.n], w.to[w.n], w.s[w.n] = io, d.frames.memory(frame, 1)[in:in+io.Len], s
	if w.n++; w.n == batchMost {
		c.commit()
	}
	return true
}

// commit makes the writes of the batch.
func (c *channel) commit() {
	w := &c.batch
	for i, io := range w.ios[:w.n] {
		from := cursor{segs: io.Segs}
		for b := w.to[i]; len(b) > 0; {
			b = b[mem.Copy(b, from.next(int64(len(b)))):]
		}
	}
	for i, io := range w.ios[:w.n] {
		w.s[i].release()
		c.done.Push(io)
		w.ios[i], w.to[i], w.s[i] = nil, nil, nil
	}
	w.n = 0
}
