package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// The way of a read whose namespace is memory:
//
//	Prepare   the channel lends the blocks, and the queue says that it can send from there: they are the request's segments
//	Execute   there is nothing to do but to complete it
//	Release   the transport has sent them, or never will: the loan is returned
//
// Whatever is missing for that (the channel is being opened, a writer waits for the blocks, the device of the transport does not know
// the memory yet), the read takes the way of all others, through memory of the transport. Writes always do: a transfer that breaks off
// in a namespace's own memory would leave a torn block (docs/adr/0008).

// lend attaches the blocks of a prepared read to its request, if it can.
func (c *cmd) lend() {
	ch := c.s.h.channel(c.ns)
	if ch == nil || ch.lender == nil {
		return
	}
	segs, ok := ch.lender.Lend(c.req.Segs, c.io.Off, c.io.Len)
	if !ok {
		return
	}
	if !c.s.q.Reaches(segs) {
		ch.lender.Return(c.io.Off, c.io.Len)
		clear(segs)
		return
	}
	c.req.Segs, c.req.Lent = segs, true
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

// Release implements fabric.Handler: the loan of a read is returned.
func (h *Handler) Release(req *fabric.Request) {
	c := req.Session.(*session).cmds[req.Tag]
	ch := c.loan
	c.loan = nil
	ch.loans--
	ch.lender.Return(c.io.Off, c.io.Len)
	ch.closeIfIdle()
}
