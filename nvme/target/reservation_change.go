package target

import (
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

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
