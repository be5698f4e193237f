package target

import (
	"cmp"

	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// awaiting is a command that waits for answers: of queries, or of changes of reservations. It
// belongs to its reactor. The end of its queue, or the delay of a list, ends the wait.
type awaiting struct {
	left int    // answers that have not come
	end  func() // called once, when all have come or the wait has ended
}

// answered is called when one answer has come.
func (h *Handler) answered(c *cmd, a *awaiting) {
	if c.awaiting != a {
		return // the wait has ended
	}
	if a.left--; a.left == 0 {
		h.endAwait(c)
	}
}

// endAwait ends the wait of a command with the answers that there are.
func (h *Handler) endAwait(c *cmd) {
	a := c.awaiting
	c.awaiting = nil
	c.delayed.Remove()
	a.end()
}

// await asks queries and calls then when all have answered, or admin.AnswerWait is over. A command
// that waits takes no goroutine.
func (h *Handler) await(c *cmd, queries []admin.Asker, then func()) {
	a := new(awaiting)
	w := &admin.Waiter{Answered: func() { h.post(func() { h.answered(c, a) }) }}
	for _, q := range queries {
		if q.Request(w) {
			a.left++
		}
	}
	if a.left == 0 {
		then()
		return
	}
	a.end = func() {
		for _, q := range queries {
			q.Leave(w)
		}
		then()
	}
	c.awaiting = a
	h.awaiting.Push(c, &c.delayed)
}

// change makes the same change of the reservations of namespaces, and completes the command when
// all are made, or after drainDeadline: then the change may be made or not, or it is made and a
// device still has commands of hosts that were preempted. The changes of many namespaces are
// submitted in the turn of the host, see hostWork, also if the command has ended before.
func (h *Handler) change(c *cmd, list []*namespaces.Namespace,
	apply func(*reservation.State) (reservation.Outcome, nvme.Status),
) {
	ctrl, host, log := c.s.ctrl, c.s.host.Payer.Key, c.s.ctrl.PeerLog()
	a, st, many := &awaiting{left: len(list)}, nvme.Success, len(list) > 1
	var changes []*reservation.Change
	submitted := make(chan struct{})
	submit := func() {
		for _, ns := range list {
			ch := &reservation.Change{
				Host: host, Log: log,
				Apply: func(r *reservation.State) (reservation.Outcome, nvme.Status) {
					if !ctrl.MayChange(ns) {
						return reservation.Outcome{}, inactiveNamespace
					}
					return apply(r)
				},
				Done: func(is nvme.Status) {
					h.post(func() {
						st = cmp.Or(st, is) // the first error
						h.answered(c, a)
					})
				},
			}
			changes = append(changes, ch)
			ns.Reservations.Submit(ch)
		}
		close(submitted)
	}
	leave := func() {
		<-submitted
		for _, ch := range changes {
			ch.End()
		}
	}
	a.end = func() {
		if many {
			ctrl.changing = false
		}
		if a.left == 0 {
			h.finish(c, 0, st)
			return
		}
		if many {
			go leave()
		} else {
			leave()
		}
		h.finish(c, 0, nvme.InternalError)
	}
	c.awaiting = a
	h.changing.Push(c, &c.delayed)
	switch {
	case many:
		ctrl.changing = true
		c.s.hostWork(submit).Request(&admin.Waiter{Answered: func() {}})
	case a.left > 0:
		submit()
	default:
		h.endAwait(c)
	}
}

// hostWork makes work for a queue, in the turn of its host.
func (s *session) hostWork(run func()) *controllers.Work {
	j := turns.Job{Run: run, Known: s.h.t.shared.Auth.IsKnown(s.info.Remote.Addr())}
	j.From(s.info.Remote.Addr())
	if s.host != nil {
		j.Owner = s.host.Payer.Key
		j.Known = j.Known || j.Owner.Proven
	}
	return s.h.t.shared.NewWork(j)
}

// elsewhere has work done for a command, and then calls then on the reactor.
func (h *Handler) elsewhere(c *cmd, work, then func()) {
	w := c.s.hostWork(work)
	h.await(c, []admin.Asker{w}, func() {
		if !w.IsDone() { // the machine is too busy
			h.finish(c, 0, nvme.InternalError)
			return
		}
		then()
	})
}
