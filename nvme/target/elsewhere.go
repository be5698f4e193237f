package target

import (
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

// hostWork is work for a queue that takes time for each namespace, controller or subsystem. The
// goroutines of Target.workers do it, in the turn of the host. It is an admin.Asker that has an
// answer once the work is done.
type hostWork struct {
	turns.Job
	t    *Target
	done atomic.Bool
}

// hostWork makes work for a queue.
func (s *session) hostWork(run func()) *hostWork {
	w := &hostWork{t: s.h.t}
	w.Run, w.Known = run, w.t.auth.IsKnown(s.info.Remote.Addr())
	w.From(s.info.Remote.Addr())
	if s.host != nil {
		w.Owner = s.host.Payer.Key
		w.Known = w.Known || w.Owner.Proven
	}
	return w
}

// Request implements admin.Asker: the work will begin in its turn.
func (w *hostWork) Request(a *admin.Waiter) bool {
	w.Done = func() {
		w.done.Store(true)
		a.Answered()
	}
	w.t.workers.Submit(&w.Job)
	return true
}

// Leave implements admin.Asker: work that has not begun is not done.
func (w *hostWork) Leave(*admin.Waiter) { w.t.workers.Cancel(&w.Job) }

// elsewhere has work done for a command, and then calls then on the reactor.
func (h *Handler) elsewhere(c *cmd, work, then func()) {
	w := c.s.hostWork(work)
	h.await(c, []admin.Asker{w}, func() {
		if !w.done.Load() { // the machine is too busy
			h.finish(c, 0, nvme.InternalError)
			return
		}
		then()
	})
}
