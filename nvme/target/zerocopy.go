package target

import "github.com/nvmf-target/nvmf-target/internal/mem"

// Zero copy, for a namespace that is memory:
//
//	Prepare      read: the channel provides the memory that holds the blocks, which the queue can
//	             send from; write: it provides free memory, which the queue can receive into
//	Execute      a read is complete; a write is submitted, and the memory becomes the blocks
//	EndZeroCopy  the memory of a read goes back when it has been sent, or never will be; so does
//	             that of a write which was not executed
//
// If something is missing (the channel is still opening, there is no memory, the transport's device
// does not know the memory yet), the data of the command moves through memory of the transport, as
// for any other device. So does in-capsule data: it has been received already. A namespace in
// memory takes that during Execute, unless other commands wait there, so the transport may leave it
// where it was received (Request.CompletesInExecute).

// startZeroCopyRead attaches the memory of the blocks to a prepared read, if possible.
func (c *cmd) startZeroCopyRead() {
	if m := c.ch.ns.marks; m.Begun() && m.Marked(c.io.Off, c.io.Len) {
		return // it fails in Execute
	}
	c.startZeroCopy(c.s.q.CanSendFrom)
}

// startZeroCopyWrite attaches memory for the blocks to a prepared write, if possible.
func (c *cmd) startZeroCopyWrite() {
	if c.req.InCapsule {
		c.req.CompletesInExecute = c.ch.CompletesAtOnce()
		return
	}
	c.startZeroCopy(c.s.q.CanReceiveInto)
}

// startZeroCopy attaches memory if the queue can use it.
func (c *cmd) startZeroCopy(usable func([]mem.Segment) bool) {
	segs, ok := c.ch.StartZeroCopy(&c.io, c.req.Segs)
	if !ok {
		return
	}
	if !usable(segs) {
		c.ch.EndZeroCopy(&c.io, segs)
		clear(segs)
		return
	}
	c.req.Segs, c.req.ZeroCopy = segs, true
	c.zeroCopy = c.ch
}
