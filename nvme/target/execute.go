package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Execute implements fabric.Handler.
func (h *Handler) Execute(reqs []*fabric.Request) {
	for _, r := range reqs {
		c := r.Command.(*cmd)
		c.executing = true
		c.s.outstanding++
		if n := int(c.s.size); 4*c.s.outstanding >= 3*n && n > 0 {
			c.s.nearlyFull++
		}
		if c.s.stopped && r.Status.OK() {
			r.Status = nvme.CommandSequenceError // no DNR: a retry may succeed on another path
		}
		switch {
		case c.limited && c.atLimit.Listed() && r.Status.OK(): // its data came with the capsule
		case c.pair != nil:
			h.stopWaiting(c)
			h.executeFused(c)
		case r.Status.OK():
			c.op.execute(h, c)
		case r.Status == notReady:
			h.finishLater(c)
		default:
			h.stopWaiting(c)
			h.refuse(c, r.Status)
		}
	}
	h.run()
}

// executeRead completes a zero-copy read, which is counted once per batch, and submits any other.
func executeRead(h *Handler, c *cmd) {
	ch := c.zeroCopy
	if ch == nil {
		executeIO(h, c)
		return
	}
	ch.CountRead(c.io.Len)
	h.finish(c, 0, nvme.Success)
}

// executeIO submits the prepared IO.
func executeIO(h *Handler, c *cmd) {
	c.io.Segs = c.req.Segs
	if c.req.InCapsule && c.ch.ns.Attributes().Timeout > 0 {
		c.copyCapsule(h)
	}
	c.since = h.loop.Now()
	if !h.submit(c.ch, &c.io) {
		h.finish(c, 0, inactiveNamespace)
	}
}

// executeFlush flushes one namespace, or all of them.
func executeFlush(h *Handler, c *cmd) {
	if c.ch == nil {
		flushAll(h, c)
		return
	}
	executeIO(h, c)
}

// copyCapsule copies in-capsule data out of the queue's own memory, where the next capsule will
// arrive: the device of a command that is given up may go on reading it. If there is no memory for
// the copy, the command cannot be given up before its device is done.
func (c *cmd) copyCapsule(h *Handler) {
	segs := c.req.Segs
	if h.memory == nil || len(segs) == 0 || segs[0].Region == h.memory.Region().ID() {
		return
	}
	if h.memory.Alloc(&c.capsule, c.req.Flow, int(c.req.Length)) {
		c.io.Segs = c.capsule.Segs
		mem.CopySegments(c.io.Segs, segs)
	}
}

// freeSegs ends the use of the command's data by its IO and frees the copy of in-capsule data.
func (c *cmd) freeSegs(h *Handler) {
	c.io.Segs = nil
	c.capsule.Free()
}

// submit queues an IO; the caller runs the handler afterwards. It returns false if the namespace
// was removed.
func (h *Handler) submit(ch *channel, io *backend.IO) bool {
	if !ch.Queue(io) {
		return false
	}
	h.startTimeouts()
	return true
}

// run processes channels and delivers completions until nothing is left to do. Queues may call
// Execute or Close from within Complete: the run in progress does the work that these add.
func (h *Handler) run() {
	if h.running {
		return
	}
	h.running = true
	for h.dispatch.Scheduled() || !h.completed.Empty() {
		h.dispatch.Process()
		h.deliver()
	}
	h.running = false
}
