package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
)

// This file visits the commands of queues in pieces, see dispatch.Walk.

const (
	// lookMost is how many commands a step of a walk looks at.
	lookMost = 8
	// endSteps is the number of steps of a command that it completes or cancels.
	endSteps = 4
)

// visitAll returns the next of a walk that calls fn with the commands of the queues that exist when
// it begins, except queues that skips selects.
func (h *Handler) visitAll(skips func(*session) bool, fn func(*cmd) bool) (next func() int) {
	var queues func() int
	var s *session
	at := 0
	return func() int {
		if queues == nil {
			queues = h.sessions.Walk(func(o *session) int { s, at = o, 0; return 1 })
		}
		if s != nil && !skips(s) {
			if n := s.look(&at, fn); n > 0 {
				return n
			}
		}
		return queues()
	}
}

// looks is the number of steps in which all commands of the queue are looked at, when it ends.
func (s *session) looks() int { return 1 + s.used/lookMost }

// look calls fn with a few commands of a queue from at on, until it returns true: it has completed
// the command, or canceled something. look returns the number of steps, 0 if there are no commands.
func (s *session) look(at *int, fn func(c *cmd) bool) (steps int) {
	for range lookMost {
		if *at >= s.used {
			break
		}
		*at++
		if steps = 1; fn(s.cmds[*at-1]) {
			return endSteps
		}
	}
	return steps
}

// end begins to end the work that a queue has at devices and at limits. The queue is over, or about
// to be disconnected. The caller runs the handler afterwards.
func (h *Handler) end(s *session) {
	s.endAt = 0
	if s.ends.Listed() {
		return
	}
	s.ends = dispatch.Walk{Done: s.endIfIdle, Next: func() int {
		return s.look(&s.endAt, h.endCommand)
	}}
	h.dispatch.Start(&s.ends)
}

// endCommand ends the wait of a command. If the queue is over, it has the devices give back the IOs
// of the command: the host may retry it elsewhere, and a late write must not follow. IOs that a
// device cannot give back have closeGrace.
func (h *Handler) endCommand(c *cmd) bool {
	s, m := c.s, c.compound
	if c.waits() { // the transport abandons parked commands
		h.stopWaiting(c)
		if c.executing {
			h.endWaiter(c, nvme.AbortedSQDeletion)
		}
		return true
	}
	if !s.queue.Over {
		return false
	}
	switch {
	case c.delayed.Listed():
		c.delayed.End()
	case !c.executing:
		return false
	case m != nil:
		m.Abort(nvme.Success)
	case c.since != 0 && c.ch.Abort(&c.io, backend.ErrAborted):
	case c.since != 0:
		c.ch.Cancel(&c.io)
	default:
		return false
	}
	return true
}

// exclude visits the commands of hosts that a round excludes, see dispatch.Config.Exclude.
func (h *Handler) exclude(to *dispatch.Channel, r *dispatch.Round) (next func() int) {
	ch := to.User.(*channel)
	return h.visitAll(func(s *session) bool {
		return s.ctrl == nil || s.ctrl.sub != ch.ns.Owner || r.Skips(&s.queue)
	}, func(c *cmd) bool { return ch.exclude(r, c) })
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
