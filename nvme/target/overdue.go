package target

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// What happens to a command whose device does not answer:
//
//	watch     a timer looks for overdue commands, while devices have any
//	giveUp    the command completes with a status after which hosts try again. Its memory is kept: the device may still use it
//	returned  the device gives the IO back after all, and the memory is freed
//
// From the first giveUp to the last return the namespace is not ready, on all reactors. So a write
// that was given up, and may yet happen, is never overtaken by one that was accepted later, and no
// more than what was under way goes to a device that hangs.

const (
	// watchEvery is the interval at which overdue commands are looked for, in nanoseconds.
	watchEvery = int64(500e6)
	// rangeFactor is how many times the timeout discards and zeroes may take: one may be about the
	// whole disk.
	rangeFactor = 10
	// closeGrace is how long devices may take for the commands of a queue that has ended: a reset
	// waits for that.
	closeGrace = int64(5e9)
	// laterAfter is how long a host is kept waiting for the status notReady. Hosts with several
	// paths try again at once, for ever, and those with one give up after a few attempts.
	laterAfter = int64(1e9)
)

// watch starts the timer that looks for overdue commands.
func (h *Handler) watch() {
	h.watching = h.after(watchEvery, func() {
		h.watching = nil
		if h.giveUpOverdue() {
			h.watch()
		}
	})
}

// unwatch ends the timer if no channel has anything.
func (h *Handler) unwatch() {
	for _, ch := range h.channels {
		if ch != nil && (ch.inflight > 0 || len(ch.pending) > 0) {
			return
		}
	}
	if h.watching != nil {
		h.watching()
		h.watching = nil
	}
}

// giveUpOverdue says whether devices still have commands that are not given up.
func (h *Handler) giveUpOverdue() (left bool) {
	now := h.loop.Now()
	for s := range h.sessions {
		if s.outstanding == 0 {
			continue
		}
		late := s.closed && now-s.closedAt >= closeGrace
		for i, c := range s.cmds {
			if !c.busy || c.since == 0 {
				continue
			}
			if t := c.timeout(); late || t > 0 && now-c.since >= t {
				h.giveUp(c)
			}
			left = left || s.cmds[i].since != 0
		}
	}
	return left
}

// timeout is how long the command may take, in nanoseconds, 0 for ever.
func (c *cmd) timeout() (t int64) {
	if c.multi == nil {
		return c.ns.timeoutOf(c.io.Op)
	}
	for i := range c.multi.ios {
		o := &c.multi.ios[i]
		if o.ns == nil {
			continue
		}
		if n := o.ns.timeoutOf(o.Op); n > 0 && (t == 0 || n < t) {
			t = n
		}
	}
	return t
}

func (ns *namespace) timeoutOf(op backend.Op) int64 {
	if op == backend.OpDiscard || op == backend.OpWriteZeroes {
		return ns.timeout * rangeFactor
	}
	return ns.timeout
}

// giveUp completes a command that a device has, or that waits for it.
func (h *Handler) giveUp(c *cmd) {
	if m := c.multi; m != nil {
		m.giveUp(h)
		return
	}
	ch := h.channel(c.ns)
	if ch.remove(&c.io) {
		c.io.Segs = nil
		c.freeOwn(h)
		ch.ns.timedOut()
		h.finish(c, 0, notReady)
		return
	}
	r := c.req
	if len(c.own) == 0 {
		if c.free = c.s.q.HandOverBuffers(r); c.free == nil {
			return // not before the device is done with it
		}
	}
	// The device has c.io, and maybe the array of its segments: the request gets another state.
	next := &cmd{s: c.s, i: c.i, req: r, op: c.op, ns: c.ns, busy: true}
	next.io.Owner = next
	c.s.cmds[c.i], r.Command = next, next
	c.req, c.busy = nil, false
	ch.ns.orphan(h.t.log)
	h.finish(next, 0, notReady)
	ch.cancel(&c.io)
}

// cancel spares the device what nobody waits for any more.
func (ch *channel) cancel(io *backend.IO) {
	if c, ok := ch.dev.(backend.Canceler); ok {
		c.Cancel(io)
	}
}

// returned takes back an IO whose command was given up.
func (ch *channel) returned(c *cmd) {
	if c.free != nil {
		c.free()
		c.free = nil
	}
	ch.ns.returned(ch.h.t.log)
}

// giveUp completes the command. What devices have comes back to ioDone, and then the multi is free.
func (m *multi) giveUp(h *Handler) {
	for i := range m.ios {
		o := &m.ios[i]
		switch {
		case o.ns == nil:
		case h.channel(o.ns).remove(&o.IO):
			if o.ns.timeout > 0 { // otherwise another namespace is to blame
				o.ns.timedOut()
			}
			o.ns = nil
			m.idle[m.nidle] = o
			m.nidle++
		default:
			o.ns.orphan(h.t.log)
			h.channel(o.ns).cancel(&o.IO)
		}
	}
	c := m.c
	m.c, c.multi = nil, nil
	h.finish(c, 0, notReady)
	m.step(h)
}

// takeCapsule copies in-capsule data that lies in the queue's own memory, where the next capsule
// will arrive: a command that is given up must leave its data to the device. Without memory for
// that it will wait for the device.
func (c *cmd) takeCapsule(h *Handler) {
	segs := c.req.Segs
	if h.memory == nil || len(segs) == 0 || segs[0].Region == h.memory.Region().ID() {
		return
	}
	own, ok := h.memory.Alloc(c.own[:0], int(c.req.Length))
	if !ok {
		return
	}
	c.own, c.io.Segs = own, own
	mem.CopySegments(own, segs)
}

func (c *cmd) freeOwn(h *Handler) {
	if len(c.own) > 0 {
		h.memory.Free(c.own)
		clear(c.own)
		c.own = c.own[:0]
	}
}

// delayed is a command that is completed at a time.
type delayed struct {
	c  *cmd
	at int64
	st nvme.Status
}

// finishLater completes a command after laterAfter.
func (h *Handler) finishLater(c *cmd, st nvme.Status) {
	c.since = 0
	if c.s.closed {
		h.finish(c, 0, st)
		return
	}
	h.later = append(h.later, delayed{c, h.loop.Now() + laterAfter, st})
	if h.stopLater == nil {
		h.waitLater()
	}
}

func (h *Handler) waitLater() {
	h.stopLater = h.after(max(h.later[0].at-h.loop.Now(), 1e6), func() {
		h.stopLater = nil
		now := h.loop.Now()
		h.finishDelayed(func(d *delayed) bool { return d.at <= now })
		if len(h.later) > 0 {
			h.waitLater()
		}
	})
}

// finishDelayed completes those of which due says so. It returns how many.
func (h *Handler) finishDelayed(due func(*delayed) bool) (n int) {
	var list []delayed
	h.later = slices.DeleteFunc(h.later, func(d delayed) bool {
		if due(&d) {
			list = append(list, d)
			return true
		}
		return false
	})
	for i := range list {
		h.finish(list[i].c, 0, list[i].st)
	}
	if len(h.later) == 0 && h.stopLater != nil {
		h.stopLater()
		h.stopLater = nil
	}
	return len(list)
}
