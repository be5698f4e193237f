package target

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// A command that waits at a limit has nothing but its request: Prepare defers it before any memory
// is found. When its turn has come, it is prepared again, for the namespace as it is then. Only a
// command with in-capsule data goes on, and waits in Execute.

// data returns the bytes of the limits that a prepared command takes before it begins.
func (g limitGate) data(c *cmd) int64 {
	switch g {
	case limitData:
		return c.io.Len
	case limitPieces:
		return min(c.io.Len, compound.ZeroPiece)
	}
	return 0
}

// waitsAtLimit reports whether a command that limits apply to has to wait at one, and defers it
// then. data is the number of bytes that it moves.
func (c *cmd) waitsAtLimit(data int64) bool {
	if c.admitted || c.op.limit == limitNone {
		return false
	}
	c.atLimit.Owner = c
	if !c.s.h.gate.Wait(&c.flow.Limits, &c.atLimit, data) {
		return false
	}
	c.req.Deferred = true
	return true
}

// admit lets a command go on that no longer waits at a limit.
func (h *Handler) admit(w *qos.Waiter) {
	c := w.Owner.(*cmd)
	c.waited(h)
	switch parked := c.req.Deferred; {
	case parked && c.s.ends.Listed(): // the transport abandons it
	case parked:
		r := c.req
		r.Dir, r.Length = 0, 0
		c.admitted = true
		st := c.s.prepare(c)
		c.admitted = false
		h.resume(c, st)
	case c.pair != nil && c.executing:
		h.executeFused(c)
	case c.compound != nil:
		c.compound.Admitted()
	case c.executing:
		c.op.execute(h, c)
	}
}

// waited counts the time that a command has waited in Execute.
func (c *cmd) waited(h *Handler) {
	if c.executing {
		c.req.Spent(fabric.StageWait, h.loop.Clock())
	}
}

// endWaiter ends a command that has waited in Execute.
func (h *Handler) endWaiter(c *cmd, st nvme.Status) {
	switch {
	case c.pair != nil:
		h.failPair(c, st)
	case c.compound != nil:
		c.compound.Refuse(st)
	default:
		h.finish(c, 0, st)
	}
}

// resume gives a parked command back to its queue.
func (h *Handler) resume(c *cmd, st nvme.Status) {
	r := c.req
	if !st.OK() {
		r.Status, r.Dir, r.Length = st, 0, 0
	}
	c.s.q.Resume(r)
}

// waits reports whether the command waits at a limit, or is postponed.
func (c *cmd) waits() bool { return c.atLimit.Listed() || c.postponed.Listed() }

// parked reports whether the command waits at a limit, and its queue does, too.
func (c *cmd) parked() bool { return c.atLimit.Listed() && c.req.Deferred }

// stopWaiting ends the wait of a command if it waits at a limit, or is postponed.
func (h *Handler) stopWaiting(c *cmd) {
	switch {
	case c.atLimit.Listed():
		h.gate.Leave(&c.flow.Limits, &c.atLimit)
	case c.postponed.Listed():
		c.s.host.Payer.Withdraw(&c.postponed)
	}
}

// abortWaiting aborts a command that waits at a limit or is postponed. The caller runs the handler
// afterwards.
func (h *Handler) abortWaiting(c *cmd, st nvme.Status) {
	parked := c.parked()
	h.stopWaiting(c)
	c.waited(h)
	if parked {
		h.resume(c, st)
		return
	}
	h.endWaiter(c, st)
}

// limiters returns the current limits of the traffic of a host to a namespace.
func (t *Target) limiters(hostNQN string, ns *namespaces.Namespace) qos.Limiters {
	return qos.Limiters{
		t.shared.Hosts.Limiter(hostNQN), ns.Owner.(*subsystem).Settings.Load().Limiter,
		ns.Attributes().Limiter,
	}
}

// relink makes all flows use the current limits.
func (h *Handler) relink() { h.shares.Relink(h.gate) }

// relink has handlers use the current limits.
func relink(handlers []*Handler) {
	for _, h := range handlers {
		h.post(h.relink)
	}
}
