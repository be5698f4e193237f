package target

import (
	"errors"
	"slices"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Reservations on the I/O path. A reactor's channel has a copy of who may use the namespace
// (channel.access, nil without a reservation), which is compared twice:
//
//	bind          before data moves
//	checkPending  before the device gets the IO, which may be much later
//
// When it changes, a fence waits on each reactor for what the device has already.

// errConflict and errPreempted are why an IO is not carried out. Nothing of it has reached the
// device, or the device has canceled it.
var (
	errConflict  = errors.New("the namespace is reserved by another host")
	errPreempted = errors.New("the host was preempted")
)

// fence waits on one reactor until its device has no IO of hosts that lost access.
type fence struct {
	// aborted are hosts whose commands are aborted, whatever they may still do.
	aborted map[[16]byte]bool
	change  *reservationChange
	done    func()
	ios     map[*backend.IO]bool // that the device has; true: aborted
}

// conflict says why an IO that waits for the device must not reach it. What admin commands lead to
// is the controller's own: the flush of one that write protects a namespace.
func (ch *channel) conflict(io *backend.IO) error {
	if ch.access == nil {
		return nil
	}
	s := ownerSession(io)
	if s == nil || s.qid == 0 || ch.access.permits(&s.ctrl.hostID, io.Op != backend.OpRead) {
		return nil
	}
	return errConflict
}

// setAccess adopts who may use ns. The fence is done when the device has nothing of the others.
func (h *Handler) setAccess(ns *namespace, a *access, f *fence) {
	ch := h.channel(ns)
	if ch == nil { // it was closed because the namespace is retired
		f.done()
		return
	}
	ch.access = a
	if a == nil && len(f.aborted) == 0 {
		f.done() // nobody is excluded
		return
	}
	ch.refusePending(func(io *backend.IO) error {
		if s := ownerSession(io); s != nil && f.aborted[s.ctrl.hostID] {
			return errPreempted
		}
		return ch.conflict(io)
	})
	if len(f.aborted) > 0 {
		h.abortHosts(ch, f.aborted)
	}
	f.ios = map[*backend.IO]bool{}
	if ch.inflight > 0 {
		h.findExcluded(ch, f)
	}
	ch.fences = slices.DeleteFunc(ch.fences, func(o *fence) bool { return o.change.ended.Load() })
	ch.fences = append(ch.fences, f)
	for io, aborted := range f.ios {
		if aborted {
			ch.cancel(io)
		}
	}
	ch.endFences()
	h.schedule(ch)
}

// abortHosts aborts what commands of hosts have not given to the device yet: those that wait at a
// limit or for the other half of a pair, and the rest of compounds.
func (h *Handler) abortHosts(ch *channel, hosts map[[16]byte]bool) {
	for s := range h.sessions.All() {
		if s.ctrl == nil || !hosts[s.ctrl.hostID] || s.ctrl.sub != ch.ns.sub {
			continue
		}
		for _, c := range s.cmds {
			switch m := c.compound; {
			case m != nil && m.uses(ch):
				m.refuse(h, nvme.AbortedPreempt)
			case m != nil || c.ch != ch:
			case c.waiting.Listed():
				h.abortWaiting(c, nvme.AbortedPreempt)
			case c.executing && c.pair != nil:
				h.failPair(c, nvme.AbortedPreempt)
			}
		}
	}
}

// uses says whether the compound reads or writes through a channel.
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

// findExcluded lists the IOs that the device has of hosts that lost access or are aborted.
func (h *Handler) findExcluded(ch *channel, f *fence) {
	for s := range h.sessions.All() {
		if s.outstanding == 0 || s.ctrl == nil || s.ctrl.sub != ch.ns.sub {
			continue
		}
		aborted := f.aborted[s.ctrl.hostID]
		add := func(io *backend.IO) {
			if aborted || ch.conflict(io) != nil {
				f.ios[io] = aborted
			}
		}
		for _, c := range s.cmds {
			switch {
			case !c.executing || c.since == 0:
			case c.compound == nil && c.ch == ch:
				add(&c.io)
			case c.compound != nil:
				c.compound.each(ch, add)
			}
		}
	}
}

// each calls fn with the IOs that a channel has of a compound.
func (m *compound) each(ch *channel, fn func(*backend.IO)) {
	for i := range m.ios {
		if o := &m.ios[i]; o.ch == ch {
			fn(&o.IO)
		}
	}
}

// fenced notes that the device has given IOs back.
func (ch *channel) fenced(ios []*backend.IO) {
	for _, f := range ch.fences {
		for _, io := range ios {
			if f.ios[io] && errors.Is(io.Err, backend.ErrAborted) {
				io.Err = errPreempted
			}
			delete(f.ios, io)
		}
	}
}

// endFences ends the fences that wait for nothing any more. IOs that were given up are waited for
// whatever host they were of.
func (ch *channel) endFences() {
	ch.fences = slices.DeleteFunc(ch.fences, func(f *fence) bool {
		if len(f.ios) > 0 || ch.orphans > 0 {
			return false
		}
		f.done()
		return true
	})
	if len(ch.fences) == 0 {
		ch.fences = nil
	}
}

// awaitedChange is a command that waits for changes of reservations. It belongs to its reactor.
type awaitedChange struct {
	changes []*reservationChange
	left    int
	status  nvme.Status // the first error
}

// change makes the same change of the reservations of namespaces, and completes the command when
// all are made, or after drainDeadline: then the change may be made or not, or it is made and a
// device still has commands of hosts that were preempted.
func (h *Handler) change(c *cmd, list []*namespace, abort bool,
	apply func(*Reservations) (outcome, nvme.Status),
) {
	w := &awaitedChange{left: len(list)}
	c.changing = w
	h.changing.push(c)
	for _, ns := range list {
		ch := &reservationChange{
			r: ns.reservations, apply: apply, abort: abort, log: c.s.ctrl.peerLog(),
		}
		ch.done = func(st nvme.Status) { h.post(func() { h.changed(c, w, st) }) }
		w.changes = append(w.changes, ch)
	}
	for _, ch := range w.changes {
		ch.r.submit(ch)
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
			ch.end()
		}
	}
	h.finish(c, 0, w.status)
}
