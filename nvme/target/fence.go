package target

import (
	"errors"
	"slices"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// fencing is the part of a channel that keeps hosts from its namespace.
type fencing struct {
	access   *reservation.Access // of hosts to the namespace; see fence.go
	fences   []*fence            // nil but for short times
	round    *fenceRound
	aborting map[reservation.Host]int // hosts that rounds of fences abort, and how many of them do
	orphans  int                      // IOs in the device, of commands that were given up
}

// Reservations on the I/O path. A reactor's channel has a copy of the access of hosts to the
// namespace (channel.access, nil without a reservation). It is compared twice:
//
//	bind          before data moves: Reservation Conflict
//	check         before the device gets the IO, which may be much later: the IO is aborted, since
//	              a command allowed before must not end with that status (Base section 8.1.22)
//
// When the access changes, a fence waits on each reactor for IOs that the device has already.

// errPreempted is the error of an IO of a preempted host. Nothing of the IO has reached the device,
// or the device has canceled it.
var errPreempted = errors.New("the host was preempted")

// fence waits on one reactor until its device has no IO of hosts that lost access.
type fence struct {
	await
	access *reservation.Access // as of its change; that of the channel may be newer
	// aborted are the hosts to abort. Their commands are aborted even if they still have access.
	aborted map[reservation.Host]bool
	change  *reservation.Change
	drained func()
}

// permits reports whether an IO that waits for the device may reach it. IOs of admin commands are
// the controller's own: for example the flush of a command that write protects a namespace.
func (ch *channel) permits(io *backend.IO) bool { return permits(ch.access, io) }

func permits(a *reservation.Access, io *backend.IO) bool {
	if a == nil {
		return true
	}
	g := groupWrite
	if io.Op == backend.OpRead {
		g = groupRead
	}
	s := ownerSession(io)
	return s == nil || s.qid == 0 || a.Permits(s.ctrl.identity, g)
}

// sharedFences is how many fences share a round: it compares each IO with all of them.
const sharedFences = 8

// fenceRound has fences of a channel that wait for a round of the reactor.
type fenceRound struct {
	walk
	ch     *channel
	fences []*fence // the first one counts IOs and waits for the round, the others wait for it
}

// setAccess adopts the access of hosts to the namespace. The fence ends when the device has no IOs
// of hosts without access. Until the round ends, no IO of hosts that are aborted reaches the
// device.
func (ch *channel) setAccess(a *reservation.Access, f *fence) {
	ch.access = a
	if a == nil && len(f.aborted) == 0 {
		f.drained() // nobody is excluded
		return
	}
	f.access, f.done = a, ch.endFences
	ch.addFence(f)
	for id := range f.aborted { // bound: registrants
		ch.aborting[id]++
	}
	if r := ch.round; r != nil && len(r.fences) < sharedFences &&
		ch.h.walks[fenceWalk].First() != &r.walk { // it has not begun
		r.fences = append(r.fences, f)
		return
	}
	f.left++
	r := &fenceRound{ch: ch, fences: []*fence{f}}
	r.next, r.done = ch.h.visitAll(r.skips, r.exclude), r.end
	ch.round = r
	ch.h.start(fenceWalk, &r.walk)
	ch.h.schedule(ch)
}

// end ends the round.
func (r *fenceRound) end() {
	ch := r.ch
	for _, f := range r.fences {
		for id := range f.aborted { // bound: registrants
			if ch.aborting[id]--; ch.aborting[id] == 0 {
				delete(ch.aborting, id)
			}
		}
	}
	if ch.round == r {
		ch.round = nil
	}
	r.fences[0].left--
	ch.endFences()
}

// aborts reports whether the host of an I/O queue is being aborted.
func (ch *channel) aborts(s *session) bool {
	return s.qid != 0 && len(ch.aborting) > 0 && ch.aborting[s.ctrl.identity.Value()] > 0
}

// skips reports whether the host of a queue has access by all fences, and is not aborted.
func (r *fenceRound) skips(s *session) bool {
	ch := r.ch
	return s.ctrl == nil || s.ctrl.sub != ch.ns.sub || !ch.aborts(s) &&
		!slices.ContainsFunc(r.fences, func(f *fence) bool {
			return f.access != nil && !f.access.Permits(s.ctrl.identity, groupWrite)
		})
}

// excludes reports whether the host of an IO has no access by one of the fences. It may have it
// again by now.
func (r *fenceRound) excludes(io *backend.IO) bool {
	return slices.ContainsFunc(r.fences, func(f *fence) bool { return !permits(f.access, io) })
}

// exclude ends the IOs of a command in the namespace. It completes IOs that the device does not
// have, and waits for IOs that it has. It reports whether there was anything to end.
func (r *fenceRound) exclude(c *cmd) bool {
	ch, m, aborted := r.ch, c.compound, r.ch.aborts(c.s)
	if c.req == nil {
		return false
	}
	if aborted && r.abort(c) {
		return true
	}
	if m == nil {
		return c.ch == ch && c.executing && r.excludeIO(&c.io, aborted)
	}
	found := false
	for o := range m.IOs() {
		if c.compound != m {
			break // it has ended
		}
		if o.Channel == ch && r.excludeIO(&o.IO, aborted) {
			found = true
		}
	}
	if aborted && c.compound == m && c.uses(ch) {
		m.Refuse(nvme.AbortedPreempt)
		found = true
	}
	return found
}

// excludeIO completes an IO, or makes the first fence wait for it.
func (r *fenceRound) excludeIO(io *backend.IO, aborted bool) bool {
	ch := r.ch
	switch {
	case !aborted && !r.excludes(io):
		return false
	case ch.Withdraw(io):
		io.Err = errPreempted
		ch.done(io)
	case ch.has(io):
		x := ch.awaits(io)
		if x.by[byFence] == nil {
			x.await(byFence, &r.fences[0].await)
		}
		if aborted && !x.aborted {
			x.aborted = true
			ch.Cancel(io)
		}
	default:
		return false
	}
	return true
}

// abort aborts a command that has not given everything to the device yet: it waits at a limit or
// for the other half of a pair, or its data is on its way. It returns false if its IOs are left.
func (r *fenceRound) abort(c *cmd) bool {
	h, m := r.ch.h, c.compound
	switch {
	case !c.uses(r.ch):
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

// addFence makes f the last fence. Before it needs more memory, it removes fences that no command
// waits for. Fences that wait for IOs stay; there are no more of them than IOs.
func (ch *channel) addFence(f *fence) {
	if len(ch.fences) == cap(ch.fences) {
		ch.fences = slices.DeleteFunc(ch.fences, func(o *fence) bool {
			return o.left == 0 && o.change.Ended()
		})
	}
	ch.fences = append(ch.fences, f)
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

// endFences ends the fences that wait for nothing any more, in their order: later fences wait for
// the IOs of earlier ones as well. All fences wait for IOs that were given up, of any host.
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
	// submitted is closed when another goroutine has submitted them, because there are many.
	// Otherwise it is nil.
	submitted chan struct{}
	left      int
	status    nvme.Status // the first error
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
	ctrl, host, log := c.s.ctrl, c.s.host.payer.key, c.s.ctrl.peerLog()
	submit := func() {
		for _, ns := range list {
			ch := &reservation.Change{
				Host: host, Log: log,
				Apply: func(r *reservation.State) (reservation.Outcome, nvme.Status) {
					if !ctrl.mayChange(ns) {
						return reservation.Outcome{}, inactiveNamespace
					}
					return apply(r)
				},
			}
			ch.Done = func(st nvme.Status) { h.post(func() { h.changed(c, w, st) }) }
			w.changes = append(w.changes, ch)
			ns.reservations.Submit(ch)
		}
	}
	switch len(list) {
	case 0:
		h.endChange(c)
	case 1:
		submit()
	default:
		w.submitted, ctrl.changing = make(chan struct{}), true
		go func() {
			submit()
			close(w.submitted)
		}()
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

// endChange completes a command when its changes are made, or when it cannot wait any longer.
func (h *Handler) endChange(c *cmd) {
	w := c.changing
	c.changing = nil
	h.changing.remove(c)
	if w.submitted != nil {
		c.s.ctrl.changing = false
	}
	if w.left > 0 {
		w.status = nvme.InternalError
		w.end()
	}
	h.finish(c, 0, w.status)
}

// end notes that the command waits for the changes no more.
func (w *awaitedChange) end() {
	if w.submitted != nil {
		go func() {
			<-w.submitted
			endChanges(w.changes)
		}()
		return
	}
	endChanges(w.changes)
}

func endChanges(list []*reservation.Change) {
	for _, ch := range list {
		ch.End()
	}
}
