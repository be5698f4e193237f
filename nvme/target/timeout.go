package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/dispatch"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
)

// The steps for a command at a device that does not answer:
//
//	checkTimeouts  finds it: a timer runs while devices have commands
//	fenced         waits until the storage refuses its writes, if other machines use the storage
//	giveUp         completes it with a status after which hosts retry, and does not free its
//	               memory, which the device may still use
//	returned       frees the memory when the device gives the IO back after all
//
// From the first giveUp to the last return the namespace is not ready, on all reactors. So a write
// that was given up, and may yet happen, is never overtaken by one that was accepted later, and a
// device that hangs gets no more work than it has.

const (
	// timeoutInterval is how often commands that have timed out are looked for, in nanoseconds.
	timeoutInterval = int64(500e6)
	// closeGrace is how long devices may take for the commands of a queue that has ended, in
	// nanoseconds: a controller reset waits for them.
	closeGrace = int64(5e9)
)

// startTimeouts starts the timer of checkTimeouts, unless the timer or checkTimeouts runs.
func (h *Handler) startTimeouts() {
	h.timeoutsLeft = true
	if h.stopTimeouts == nil {
		h.stopTimeouts = h.after(timeoutInterval, h.checkTimeouts)
	}
}

// stopTimeoutsIfIdle stops the timer if no channel is left.
func (h *Handler) stopTimeoutsIfIdle() {
	if h.compounds.Reading() || h.opened > 0 || h.stopTimeouts == nil {
		return
	}
	if h.timeoutsLeft = false; !h.timeouts.Listed() {
		h.stopTimeouts()
		h.stopTimeouts = nil
	}
}

// checkTimeouts gives up commands that have timed out, and looks again later if devices have
// others. The timer does not run meanwhile, so a reactor has one look at a time.
func (h *Handler) checkTimeouts() {
	h.timeoutsLeft = false
	idle := func(s *session) bool { return s.outstanding == 0 }
	h.timeouts = dispatch.Walk{Next: h.visitAll(idle, h.checkTimeout), Done: func() {
		if h.stopTimeouts = nil; h.timeoutsLeft {
			h.startTimeouts()
		}
	}}
	h.dispatch.Start(&h.timeouts)
}

// checkTimeout gives a command up if it has timed out, and reports whether it has. A write that is
// slow becomes a late write.
func (h *Handler) checkTimeout(c *cmd) bool {
	since := c.began()
	if !c.executing || since == 0 {
		return false
	}
	s, now, slow := c.s, h.loop.Now(), false
	c.lateWrites(now-slowWrite, func(ch *channel, io *backend.IO) {
		slow = slow || !ch.IsLate(io)
	})
	if slow {
		h.holdLate(s, now-slowWrite)
	}
	if now-since >= observe.WatchdogAfter {
		s.watchdog(now - since)
	}
	expired := s.queue.Over && now-s.closedAt >= closeGrace || c.timedOut(now) && c.fenced(now)
	if expired {
		h.giveUp(c)
	}
	h.timeoutsLeft = h.timeoutsLeft || s.cmds[c.i].began() != 0
	return slow || expired
}

// timedOut reports whether a device has taken too long for the command, or for a part of it.
func (c *cmd) timedOut(now int64) bool {
	m := c.compound
	if m == nil {
		return c.ch.ns.TimesOut(c.io.Op, now-c.since)
	}
	for o := range m.IOs() {
		if o.Channel.(*channel).ns.TimesOut(o.Op, now-o.Since) {
			return true
		}
	}
	// It times out also while it waits for something else, but not for its turn.
	return m.Waits() && c.ch.ns.TimesOut(backend.OpRead, now-m.Since)
}

// fenced reports whether no write that devices have of the command can overtake its retry on a path
// through another machine. Devices that cannot promise that yet are made to.
func (c *cmd) fenced(now int64) bool {
	all := true
	c.lateWrites(now, func(ch *channel, _ *backend.IO) { all = all && ch.ns.Fenced() })
	return all
}

// giveUp completes a command that is with a device, or waits for one, with notReady. If the memory
// of its data cannot be handed over, the command is only canceled, if the device can, and stays
// outstanding until the device is done.
func (h *Handler) giveUp(c *cmd) {
	if m := c.compound; m != nil {
		giveUp(m)
		return
	}
	ch := c.ch
	if ch.Withdraw(&c.io) {
		ch.ns.CountTimeout()
		h.finish(c, 0, notReady)
		return
	}
	r := c.req
	if len(c.capsule.Segs) > 0 {
		c.free = c.capsule.HandOver()
	} else if c.free = c.s.q.HandOverBuffers(r); c.free == nil {
		ch.Cancel(&c.io) // it cannot be completed before the device is done
		return
	}
	// The device has c.io, and maybe the array of its segments: the request gets another state.
	next := &cmd{s: c.s, i: c.i, req: r, op: c.op, ch: ch, executing: true}
	next.io.Owner, next.latency = next, c.latency
	c.s.cmds[c.i], r.Command = next, next
	c.req, c.executing = nil, false
	ch.ns.CountTimeout()
	ch.Orphaned(&c.io)
	h.finish(next, 0, notReady)
	ch.Cancel(&c.io)
}

// giveUp gives up a compound, and counts that for its namespace: Flush has one IO for each
// namespace, Dataset Management all of them for the same.
func giveUp(m *compound.Compound) {
	var counted *namespaces.Namespace
	for o := range m.IOs() {
		// Without a timeout, one that was not submitted waited for another namespace.
		ch := o.Channel.(*channel)
		if ns := ch.ns; ns != counted && (ch.Has(&o.IO) || ns.Attributes().Timeout > 0) {
			counted = ns
			ns.CountTimeout()
		}
	}
	m.GiveUp()
}

// began returns the time at which a device was last given an IO of the command, 0 if no device has
// any. A pair counts for its first command.
func (c *cmd) began() int64 {
	switch m := c.compound; {
	case m == nil:
		return c.since
	case m.Command == c:
		return m.Since
	}
	return 0
}

// takeBack takes back the IO of a command that was given up.
func (c *cmd) takeBack(h *Handler) {
	c.freeSegs(h)
	if c.free != nil {
		c.free()
		c.free = nil
	}
	c.ch.OrphanBack()
}
