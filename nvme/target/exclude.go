package target

import (
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// exclude visits the commands of the hosts that a round of fences excludes. It implements
// dispatch.Config.Exclude.
func (h *Handler) exclude(to *dispatch.Channel, r *dispatch.Round) {
	ch := to.User.(*channel)
	next := h.visitAll(func(s *session) bool {
		return s.ctrl == nil || s.ctrl.sub != ch.ns.sub || r.Skips(&s.queue)
	}, func(c *cmd) bool { return ch.exclude(r, c) })
	h.start(fenceWalk, &walk{done: r.End, next: func() int {
		r.Begin()
		return next()
	}})
}

// exclude ends the IOs of a command in the namespace. It completes IOs that the device does not
// have, and has a fence wait for IOs that it has. It reports whether there was anything to end.
func (ch *channel) exclude(r *dispatch.Round, c *cmd) bool {
	m, aborted := c.compound, r.Aborts(&c.s.queue)
	if c.req == nil {
		return false
	}
	if aborted && ch.preempt(c) {
		return true
	}
	if m == nil {
		return c.ch == ch && c.executing && r.Exclude(&c.io, aborted)
	}
	found := false
	for o := range m.IOs() {
		if c.compound != m {
			break // it has ended
		}
		if o.Channel == ch && r.Exclude(&o.IO, aborted) {
			found = true
		}
	}
	if aborted && c.compound == m && c.uses(ch) {
		m.Refuse(nvme.AbortedPreempt)
		found = true
	}
	return found
}

// preempt aborts a command that has not given everything to the device yet: it waits at a limit or
// for the other half of a pair, or its data is on its way. It returns false if its IOs are left.
func (ch *channel) preempt(c *cmd) bool {
	h, m := ch.h, c.compound
	switch {
	case !c.uses(ch):
		return false
	case c.waits():
		h.abortWaiting(c, nvme.AbortedPreempt)
	case m != nil:
		return false
	case c.executing && c.pair != nil:
		h.failPair(c, nvme.AbortedPreempt)
	case c.executing:
		return false
	case c.pair != nil:
		c.pair.lost = nvme.AbortedPreempt
	default:
		c.op = &preemptedOp
	}
	return true
}

// preemptedOp takes the place of the op of a command that has not begun.
var preemptedOp = op{
	name:    "preempted command",
	execute: func(h *Handler, c *cmd) { h.finish(c, 0, nvme.AbortedPreempt) },
}

// uses reports whether a command reads or writes through a channel, or will flush it with the other
// namespaces of its subsystem.
func (c *cmd) uses(ch *channel) bool {
	if m := c.compound; m != nil {
		return m.Uses(ch)
	}
	return c.flushesAll() || c.ch == ch
}
