package target

import "github.com/nvmf-target/nvmf-target/backend"

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
	ch := c.ch
	if ch.reader == nil || ch.quiesce != quiesceNothing {
		return
	}
	if ch.ns.marks.Begun() && ch.ns.marks.Marked(c.io.Off, c.io.Len) {
		return // it fails in Execute
	}
	segs, ok := ch.reader.StartZeroCopyRead(c.req.Segs, c.io.Off, c.io.Len)
	if !ok {
		return
	}
	if !c.s.q.CanSendFrom(segs) {
		ch.reader.EndZeroCopyRead(segs, c.io.Off, c.io.Len)
		clear(segs)
		return
	}
	c.req.Segs, c.req.ZeroCopy = segs, true
	c.zeroCopy = ch
	ch.zeroCopies++
}

// startZeroCopyWrite attaches memory for the blocks to a prepared write, if possible.
func (c *cmd) startZeroCopyWrite() {
	ch := c.ch
	if ch.writer == nil || ch.quiesce != quiesceNothing {
		return
	}
	if c.req.InCapsule {
		c.req.CompletesInExecute = !ch.busy()
		return
	}
	segs, ok := ch.writer.StartZeroCopyWrite(c.req.Segs, c.io.Off, c.io.Len)
	if !ok {
		return
	}
	if !c.s.q.CanReceiveInto(segs) {
		ch.writer.AbortZeroCopyWrite(segs)
		clear(segs)
		return
	}
	c.req.Segs, c.req.ZeroCopy = segs, true
	c.io.Flags |= backend.ZeroCopy
	c.zeroCopy = ch
	ch.zeroCopies++
}
