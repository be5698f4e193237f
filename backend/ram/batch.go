package ram

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// Small writes of one Submit are made several at a time: all their slots are locked, then
// everything is copied, then the slots are unlocked. An unlock waits for all earlier stores, mostly
// to memory that is in no cache. A batch pays for that once instead of once per write
// (docs/adr/0012).

// maxBatch is the maximum number of slots locked at a time, for as many copies of up to minFrame.
const maxBatch = 8

// batch has the writes with locked slots.
type batch struct {
	ios [maxBatch]*backend.IO
	dst [maxBatch][]byte
	s   [maxBatch]*slot
	n   int
}

// addToBatch adds a write to the batch if it can be made in place, within one frame, and its slot
// is not locked: with one slot locked, the channel must not wait for another.
func (c *channel) addToBatch(io *backend.IO) bool {
	d, w := c.d, &c.batch
	end := io.Off + io.Len
	if io.Len == 0 || io.Len > minFrame || d.frameEnd(io.Off, end) != end {
		return false
	}
	s := d.slotOf(io.Off)
	was, ok := s.tryLock()
	if !ok {
		return false
	}
	frame := was.frame()
	if frame < 0 || was.readers() > 0 {
		s.unlock()
		return false
	}
	in := io.Off & (d.frame - 1)
	w.ios[w.n], w.dst[w.n], w.s[w.n] = io, d.frames.memory(frame, 1)[in:in+io.Len], s
	if w.n++; w.n == maxBatch {
		w.run(&c.done)
	}
	return true
}

// run makes the writes of the batch and adds them to done.
func (w *batch) run(done *list.List[backend.IO]) {
	for i, io := range w.ios[:w.n] {
		from := mem.NewCursor(io.Segs, 0)
		from.CopyTo(w.dst[i])
	}
	for i, io := range w.ios[:w.n] {
		w.s[i].unlock()
		done.Push(io, &io.Node)
		w.ios[i], w.dst[i], w.s[i] = nil, nil, nil
	}
	w.n = 0
}
