package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// The way of a command whose namespace is memory:
//
//	Prepare   a read: the channel lends the blocks, and the queue says that it can send from there; a write: the channel reserves
//	          memory for the blocks, and the queue says that it can receive there. That is the request's segments
//	Execute   a read needs nothing but to be completed; a write is submitted, and the device takes the memory for the blocks
//	Release   a read has been sent, or never will be: the loan is returned; a write that was not executed: the reservation is
//
// Whatever is missing for that (the channel is being opened, there is no memory, the device of the
// transport does not know it yet), the command takes the way of all others, through memory of the
// transport. So do writes whose data is in the capsule: it has been received. Memory takes it at
// once, unless something waits there, so that the transport need not put it anywhere before.

// lend attaches the blocks of a prepared read to its request, if it can.
func (c *cmd) lend() {
	ch := c.s.h.channel(c.ns)
	if ch == nil || ch.lender == nil {
		return
	}
	segs, ok := ch.lender.StartZeroCopyRead(c.req.Segs, c.io.Off, c.io.Len)
	if !ok {
		return
	}
	if !c.s.q.CanSendFrom(segs) {
		ch.lender.EndZeroCopyRead(segs, c.io.Off, c.io.Len)
		clear(segs)
		return
	}
	c.req.Segs, c.req.ZeroCopy = segs, true
	c.loan = ch
	ch.loans++
}

// executeRead completes a read whose blocks are lent, and hands others to the backend.
func executeRead(h *Handler, c *cmd) {
	ch := c.loan
	if ch == nil {
		executeIO(h, c)
		return
	}
	ch.count(backend.OpRead, c.io.Len)
	ch.unpublished = true
	ch.touch()
	h.finish(c, 0, nvme.Success)
}

// reserve attaches memory for the blocks of a prepared write to its request, if it can.
func (c *cmd) reserve() {
	ch := c.s.h.channel(c.ns)
	if c.req.InCapsule {
		c.req.CompletesInExecute = ch != nil && ch.receiver != nil && ch.inflight+
			len(ch.pending) == 0
		return
	}
	if ch == nil || ch.receiver == nil {
		return
	}
	segs, ok := ch.receiver.StartZeroCopyWrite(c.req.Segs, c.io.Off, c.io.Len)
	if !ok {
		return
	}
	if !c.s.q.CanReceiveInto(segs) {
		ch.receiver.AbortZeroCopyWrite(segs)
		clear(segs)
		return
	}
	c.req.Segs, c.req.ZeroCopy = segs, true
	c.io.Flags |= backend.ZeroCopy
	c.loan = ch
	ch.loans++
}

// EndZeroCopy implements fabric.Handler: what was attached to a request goes back, unless the
// device has taken it.
func (h *Handler) EndZeroCopy(req *fabric.Request) {
	c := req.Command.(*cmd)
	ch := c.loan
	c.loan = nil
	ch.loans--
	switch {
	case c.io.Op == backend.OpRead:
		ch.lender.EndZeroCopyRead(req.Segs, c.io.Off, c.io.Len)
	case c.io.Flags&backend.ZeroCopy != 0:
		ch.receiver.AbortZeroCopyWrite(req.Segs)
	}
	ch.closeIfIdle()
}
