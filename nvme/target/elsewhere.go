package target

import (
	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
)

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
