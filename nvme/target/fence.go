package target

import (
	"errors"
	"slices"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// Reservations on the I/O path. A reactor's channel has a copy of who may use the namespace
// (channel.access, nil without a reservation), which is compared twice:
//
//	bind          before data moves: Reservation Conflict
//	check         before the device gets the IO, which may be much later: it is aborted, since
//	              what was allowed once must not end with that status (Base section 8.1.22)
//
// When it changes, a fence waits on each reactor for what the device has already.

// errPreempted is why an IO is not carried out. Nothing of it has reached the device, or the device
// has canceled it.
var errPreempted = errors.New("the host was preempted")

// fence waits on one reactor until its device has no IO of hosts that lost access.
type fence struct {
	await
	// aborted are hosts whose commands are aborted, whatever they may still do.
	aborted map[reservation.Host]bool
	change  *reservation.Change
	drained func()
}

// permits reports whether an IO that waits for the device may reach it. What admin commands lead to
// is the controller's own: the flush of one that write protects a namespace.
func (ch *channel) permits(io *backend.IO) bool {
	if ch.access == nil {
		return true
	}
	g := groupWrite
	if io.Op == backend.OpRead {
		g = groupRead
	}
	s := ownerSession(io)
	return s == nil || s.qid == 0 || ch.access.Permits(s.ctrl.identity, g)
}

// setAccess adopts who may use the namespace. The fence ends when the device has nothing of the
// others.
func (ch *channel) setAccess(a *reservation.Access, f *fence) {
	ch.access = a
	if a == nil && len(f.aborted) == 0 {
		f.drained() // nobody is excluded
		return
	}
	f.done = ch.endFences
	ch.preempt(f)
	if len(f.aborted) > 0 {
		ch.h.abortHosts(ch, f.aborted)
	}
	ch.addFence(f)
	if ch.inflight > 0 {
		ch.findExcluded(f)
	}
	ch.endFences()
	ch.h.schedule(ch)
}

// preempt completes IOs of hosts that lost access or are aborted, unless the device has them.
func (ch *channel) preempt(f *fence) {
	var lost list.List[backend.IO]
	for io := range ch.pending.All() {
		if ch.lost(io, f) {
			ch.takeOut(io)
			lost.Push(io, &io.Place)
		}
	}
	for io := lost.Pop(); io != nil; io = lost.Pop() { // completing one may add others
		io.Err = errPreempted
		ch.done(io)
	}
}

// lost reports whether the host of an IO has lost access or is aborted.
func (ch *channel) lost(io *backend.IO, f *fence) bool {
	s := ownerSession(io)
	return !ch.permits(io) || s != nil && f.aborted[s.ctrl.identity.Value()]
}

// addFence makes f the last fence. Those that nobody waits for any more go before there is need for
// more memory, except those that have IOs, of which there are not more than IOs.
func (ch *channel) addFence(f *fence) {
	if len(ch.fences) == cap(ch.fences) {
		ch.fences = slices.DeleteFunc(ch.fences, func(o *fence) bool {
			return o.left == 0 && o.change.Ended()
		})
	}
	ch.fences = append(ch.fences, f)
}

// abortHosts aborts what commands of hosts have not given to the device yet: those that wait at a
// limit or for the other half of a pair, and the rest of compounds. Those whose data is on its way
// end when that is here.
func (h *Handler) abortHosts(ch *channel, hosts map[reservation.Host]bool) {
	for s := range h.sessions.All() {
		if s.ctrl == nil || !hosts[s.ctrl.identity.Value()] || s.ctrl.sub != ch.ns.sub {
			continue
		}
		for _, c := range s.cmds[:s.used] {
			switch m := c.compound; {
			case m != nil && !m.uses(ch), m == nil && c.ch != ch:
			case c.waiting.Listed():
				h.abortWaiting(c, nvme.AbortedPreempt)
			case m != nil:
				m.refuse(h, nvme.AbortedPreempt)
			case c.executing && c.pair != nil:
				h.failPair(c, nvme.AbortedPreempt)
			case c.executing:
			case c.pair != nil:
				c.pair.lost = nvme.AbortedPreempt
			default:
				c.op = &preemptedOp
			}
		}
	}
}

// preemptedOp takes the place of the op of a command that has not begun.
var preemptedOp = op{
	name:    "preempted command",
	execute: func(h *Handler, c *cmd) { h.finish(c, 0, nvme.AbortedPreempt) },
}

// uses reports whether the compound reads or writes through a channel.
func (m *compound) uses(ch *channel) bool {
	return m.ch == ch || m.move != nil &&
		slices.ContainsFunc(m.move.from, func(x extent) bool { return x.ch == ch })
}

// refuse makes the compound begin nothing more. It ends when devices have nothing of it.
func (m *compound) refuse(h *Handler, st nvme.Status) {
	if m.status.OK() {
		m.status = st
	}
	if m.outstanding == 0 {
		m.advance(h)
	}
}

// findExcluded finds the IOs that the device has of hosts that lost access or are aborted, and asks
// it to give those back that are aborted.
func (ch *channel) findExcluded(f *fence) {
	var cancel []*backend.IO
	for _, io := range slices.AppendSeq(slices.Collect(ch.sent.All()), ch.unseen.All()) {
		s := ownerSession(io)
		if s == nil {
			continue
		}
		aborted := f.aborted[s.ctrl.identity.Value()]
		if !aborted && ch.permits(io) {
			continue
		}
		x := ch.awaits(io)
		if x.by[byFence] == nil {
			x.await(byFence, &f.await)
		}
		if x.aborted = x.aborted || aborted; aborted {
			cancel = append(cancel, io)
		}
	}
	for _, io := range cancel {
		ch.cancel(io)
	}
}

// endFences ends the fences that wait for nothing any more, in their order: what one waits for the
// later ones wait for as well. IOs that were given up are waited for whatever host they were of.
func (ch *channel) endFences() {
	for len(ch.fences) > 0 && ch.fences[0].left == 0 && ch.orphans == 0 {
		ch.fences[0].drained()
		ch.fences = ch.fences[1:]
	}
	if len(ch.fences) == 0 {
		ch.fences = nil
	}
}

// awaitedChange is a command that waits for changes of reservations. It belongs to its reactor.
type awaitedChange struct {
	changes []*reservation.Change
	left    int
	status  nvme.Status // the first error
}

// change makes the same change of the reservations of namespaces, and completes the command when
// all are made, or after drainDeadline: then the change may be made or not, or it is made and a
// device still has commands of hosts that were preempted.
func (h *Handler) change(c *cmd, list []*namespace,
	apply func(*reservation.State) (reservation.Outcome, nvme.Status),
) {
	w := &awaitedChange{left: len(list)}
	c.changing = w
	h.changing.push(c)
	ctrl := c.s.ctrl
	for _, ns := range list {
		ch := &reservation.Change{
			Host: c.s.host.payer.key, Log: ctrl.peerLog(),
			Apply: func(r *reservation.State) (reservation.Outcome, nvme.Status) {
				if !ctrl.mayChange(ns) {
					return reservation.Outcome{}, inactiveNamespace
				}
				return apply(r)
			},
		}
		ch.Done = func(st nvme.Status) { h.post(func() { h.changed(c, w, st) }) }
		w.changes = append(w.changes, ch)
	}
	for i, ns := range list {
		ns.reservations.Submit(w.changes[i])
	}
	if len(list) == 0 {
		h.endChange(c)
	}
}

// changed is called when one change was made or refused.
func (h *Handler) changed(c *cmd, w *awaitedChange, st nvme.Status) {
	if c.changing != w {
		return // the command has ended
	}
	if w.status.OK() {
		w.status = st
	}
	if w.left--; w.left == 0 {
		h.endChange(c)
	}
}

// endChange completes a command whose changes are made, or that cannot wait any longer.
func (h *Handler) endChange(c *cmd) {
	w := c.changing
	c.changing = nil
	h.changing.remove(c)
	if w.left > 0 {
		w.status = nvme.InternalError
		for _, ch := range w.changes {
			ch.End()
		}
	}
	h.finish(c, 0, w.status)
}
