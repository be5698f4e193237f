package target

import (
	"math"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// limitWaits are the flows of a reactor that wait at limits.
type limitWaits struct {
	waiting    list.List[flow] // at limits; waitTimer is when the first of them is looked at
	waitTimer  int64
	stopWait   func() // stops the timer, nil if it does not run
	admitsMore bool   // the next poll looks at them
	// A round looks at all of them, in pieces. nextDue is the earliest due time of the flows that
	// it has looked at.
	round   uint64
	inRound bool
	nextDue int64
}

// A command that waits at a limit is on the list of its flow, and has nothing but its request:
// Prepare defers it before any memory is found. When its turn has come, it is prepared anew, for
// the namespace as it is then. Only a command with in-capsule data goes on, and waits in Execute.

// link makes the flow use the limits that there are now.
func (f *flow) link() {
	ns := f.ch.ns
	f.limits.Link(qos.Limiters{
		f.ch.h.t.hostLimiter(f.host.nqn), ns.sub.settings.Load().limiter, ns.cfg.Load().limiter,
	}, f.host.payer.key, f.ch.h.loop.Now())
}

// unlink ends the use of limits.
func (f *flow) unlink() { f.limits.Unlink(f.ch.h.loop.Now()) }

// data is how many bytes of the limits a prepared command takes before it begins.
func (g limitGate) data(c *cmd) int64 {
	switch g {
	case limitData:
		return c.io.Len
	case limitPieces:
		return min(c.io.Len, zeroPiece)
	}
	return 0
}

// waitsAtLimit reports whether a command that limits apply to has to wait at one, and defers it
// then. data is how many bytes it moves.
func (c *cmd) waitsAtLimit(data int64) bool {
	if c.admitted || c.op.limit == limitNone {
		return false
	}
	f := c.flow
	h := c.s.h
	now := h.loop.Now()
	c.data = data
	if f.waiting.Empty() {
		at, wait := f.limits.Take(c.data, now)
		if wait == 0 {
			return false
		}
		f.at, f.due, f.round = at, now+wait, h.round
		h.waiting.Push(f, &f.node)
		h.nextDue = min(h.nextDue, f.due)
		h.startWait(f.due)
	}
	c.waitsSince, c.req.Deferred = now, true
	f.waiting.Push(c, &c.waiting)
	return true
}

// startWait makes sure that waiting flows are looked at, at the latest at due.
func (h *Handler) startWait(due int64) {
	if h.stopWait != nil {
		if h.waitTimer <= due {
			return
		}
		h.stopWait()
	}
	h.waitTimer = due
	h.stopWait = h.after(due-h.loop.Now(), func() {
		h.stopWait = nil
		h.admitDue(h.loop.Now())
	})
}

const (
	// admitMost is the most commands that go on in one poll: other hosts wait until they are done.
	admitMost = 32
	// admitLook is how many flows a poll looks at.
	admitLook = 128
)

// admitDue admits the commands of due flows that their limits allow, and returns the number of
// commands. The rest, beyond admitMost commands or admitLook flows, is for the next poll, which
// begins with the other flows.
func (h *Handler) admitDue(now int64) (n int) {
	if !h.inRound {
		h.inRound, h.nextDue = true, math.MaxInt64
		h.round++
	}
	looked := 0
	for ; n < admitMost && looked < admitLook; looked++ {
		f := h.waiting.First()
		if f == nil || f.round == h.round {
			break
		}
		h.waiting.Remove(&f.node)
		h.waiting.Push(f, &f.node)
		if f.round = h.round; f.due <= now {
			n += f.admit(now, admitMost-n)
		}
		if f.node.Listed() {
			h.nextDue = min(h.nextDue, f.due)
		}
	}
	h.steps.Add(looked)
	if f := h.waiting.First(); f == nil || f.round == h.round {
		h.inRound = false // it has looked at all
	}
	if h.admitsMore = h.inRound || h.nextDue <= now; !h.admitsMore && !h.waiting.Empty() {
		h.startWait(h.nextDue)
	}
	return n
}

// admit admits the commands that the limits allow, at most most, and returns how many.
func (f *flow) admit(now int64, most int) (n int) {
	first, waited := f.at, int64(0)
	for c := f.waiting.First(); c != nil && n < most; c = f.waiting.First() {
		at, wait := f.limits.Take(c.data, now)
		if wait > 0 {
			f.at, f.due = at, now+wait
			break
		}
		n, waited = n+1, waited+now-c.waitsSince
		f.ch.h.admit(c)
	}
	if n > 0 {
		first.Waited(n, waited)
	}
	return n
}

// admit ends the wait of a command, which goes on.
func (h *Handler) admit(c *cmd) {
	parked := c.parked()
	h.stopWaiting(c)
	c.waited(h)
	switch {
	case parked && c.s.ends.node.Listed(): // the transport abandons it
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
		c.since, c.compound.paid = h.loop.Now(), true
		c.compound.advance(h)
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
		c.compound.status = st
		c.compound.advance(h)
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

// parked says that the command waits at a limit, and that its queue does, too.
func (c *cmd) parked() bool { return c.waiting.Listed() && c.req.Deferred }

// stopWaiting ends the wait of a command if it waits at a limit.
func (h *Handler) stopWaiting(c *cmd) {
	if !c.waiting.Listed() {
		return
	}
	if c.postponed {
		c.postponed = false
		c.s.host.payer.postponed.Remove(&c.waiting)
		return
	}
	f := c.flow
	f.waiting.Remove(&c.waiting)
	if !f.waiting.Empty() {
		return
	}
	h.waiting.Remove(&f.node)
	if h.waiting.Empty() && h.stopWait != nil {
		h.stopWait()
		h.stopWait = nil
	}
}

// abortWaiting aborts a command that waits at a limit. The caller runs the handler afterwards.
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

// linkSteps is how many steps a flow takes to leave its limits, or to use others, and a command
// that goes on.
const linkSteps = 8

// dropFlows ends the flows to the namespace of a channel that is removed, and then calls done.
// Waiting commands go on, and find that there is no namespace.
func (h *Handler) dropFlows(ch *channel, done func()) {
	h.latency.Drop(&ch.ns.name)
	h.inPieces(func() int {
		f := ch.flows.First()
		if f == nil {
			return 0
		}
		h.flows.Remove(&f.place)
		f.unlink() // nothing waits again
		if c := f.waiting.First(); c != nil {
			h.admit(c)
			return linkSteps
		}
		if slot := ch.ns.slot; slot < len(f.host.flows) && f.host.flows[slot] == f {
			f.host.flows[slot] = nil
		}
		f.end()
		return linkSteps
	}, done)
}

// relink makes all flows use the present limits. Waiting flows are due at once.
func (h *Handler) relink() {
	h.inPieces(h.flows.Walk(func(f *flow) int {
		f.link()
		if f.node.Listed() {
			f.due = h.loop.Now()
			h.nextDue, h.admitsMore = min(h.nextDue, f.due), true
		}
		return linkSteps
	}), func() {
		if h.admitsMore {
			h.admitDue(h.loop.Now())
		}
	})
}

// relink has handlers use the limits that there are now.
func relink(handlers []*Handler) {
	for _, h := range handlers {
		h.post(h.relink)
	}
}

// hostLimiter returns the limiter of a host, nil if it has none.
func (t *Target) hostLimiter(nqn string) *qos.Limiter { return (*t.hosts.Load())[nqn] }
