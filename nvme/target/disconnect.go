package target

import "github.com/nvmf-target/nvmf-target/nvme"

// prepareDisconnect validates a Disconnect command (Base section 6.4).
func prepareDisconnect(c *cmd) nvme.Status {
	switch {
	case c.req.SQE.Connect().RECFMT() != 0: // in the same place
		return nvme.ConnectIncompatibleFormat | nvme.DNR
	case c.s.qid == 0:
		return nvme.InvalidQueueType | nvme.DNR
	case c.s.disconnecting():
		return sequenceError
	}
	return c.expect(0)
}

// disconnect deletes an I/O queue when its other commands are done.
func disconnect(h *Handler, c *cmd) {
	s := c.s
	if s.disconnecting() {
		h.finish(c, 0, sequenceError)
		return
	}
	s.disconnectCmd = c
	if s.outstanding == 1 {
		s.finishDisconnect()
	}
}
