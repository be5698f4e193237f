package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

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

// startZeroCopy attaches memory of the namespace to a prepared read or write, if possible.
func (c *cmd) startZeroCopy() {
	r := c.req
	if r.InCapsule {
		r.CompletesInExecute = c.ch.CompletesAtOnce()
		return
	}
	segs, ok := c.ch.StartZeroCopy(&c.io, r.Segs)
	if !ok {
		return
	}
	if !c.canUse(segs) {
		c.ch.EndZeroCopy(&c.io, segs)
		clear(segs)
		return
	}
	r.Segs, r.ZeroCopy = segs, true
	c.zeroCopy = c.ch
}

// canUse reports whether the queue can use memory of the namespace for the command.
func (c *cmd) canUse(segs []mem.Segment) bool {
	if c.io.Op == backend.OpWrite {
		return c.s.q.CanReceiveInto(segs)
	}
	m := c.ch.ns.Marks
	if m.Begun() && m.Marked(c.io.Off, c.io.Len) {
		return false // it fails in Execute
	}
	return c.s.q.CanSendFrom(segs)
}
