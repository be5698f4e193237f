package target

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
)

// Prepare implements fabric.Handler.
func (h *Handler) Prepare(reqs []*fabric.Request) {
	var last *session
	for _, r := range reqs {
		s := r.Session.(*session)
		if s != last {
			last.publishActivity()
			last = s
		}
		s.commands++
		c := s.command(r)
		c.req, c.op, c.ch, c.limited, r.Flow = r, nil, nil, false, s.flow
		c.latency = nil
		if s.fused != nil || r.SQE.FUSE() != 0 {
			s.fuse(c)
		}
		if !r.Status.OK() {
			continue
		}
		if st := s.prepare(c); !st.OK() {
			r.Status, r.Dir, r.Length = st, fabric.NoData, 0
		}
	}
	last.publishActivity()
}

// command returns the state of a request, which is assigned with the first command that the request
// carries. States are made as more commands come at the same time.
func (s *session) command(r *fabric.Request) *cmd {
	if c, ok := r.Command.(*cmd); ok {
		return c
	}
	if s.used == len(s.cmds) {
		s.grow(min(max(int(s.size)-s.used, 1), growMost))
	}
	c := s.cmds[s.used]
	s.used++
	r.Command = c
	return c
}

// publishActivity makes the number of received commands visible to the keep alive timer.
func (s *session) publishActivity() {
	if s != nil {
		s.activity.Store(s.commands)
	}
}

// prepare validates a command as far as that is possible without its data.
func (s *session) prepare(c *cmd) nvme.Status {
	sqe := &c.req.SQE
	if sqe.Opcode() == nvme.FabricsOpcode {
		return s.prepareFabrics(c)
	}
	if s.ctrl == nil {
		return sequenceError
	}
	if sqe.Flags()&flagsMask != psdtSGL<<6 && (c.pair == nil || sqe.PSDT() != psdtSGL) {
		return invalidField
	}
	if s.table == nil {
		return authenticationRequired
	}
	o := &s.table[sqe.Opcode()]
	if !o.offered(&s.ctrl.Controller) {
		return invalidOpcode
	}
	if s.disconnecting() {
		return sequenceError
	}
	if !s.ctrl.Ready.Load() {
		// The queue connected while the controller was ready. The controller has been reset, has
		// failed or was removed since, and the queue is about to end.
		if s.qid != 0 {
			return nvme.CommandSequenceError // no DNR: a retry may succeed, maybe on another path
		}
		return sequenceError
	}
	c.op = o
	if a := s.port.ANA.Load(); a != nil && o.ana == anaNSID {
		if st := c.anaRefuses(a); !st.OK() {
			return st
		}
	}
	if s.asking && o.reauth != reauthNone && s.ask(c) {
		return nvme.AuthenticationRequired
	}
	if c.pair != nil {
		return c.prepareFused()
	}
	if st := o.prepare(c); !st.OK() || c.limited && c.waitsAtLimit(o.limit.data(c)) {
		return st
	}
	if o.begin != nil {
		o.begin(c)
	}
	return nvme.Success
}

func (s *session) prepareFabrics(c *cmd) nvme.Status {
	sqe := &c.req.SQE
	o := &fabricsOps[sqe.FabricsType()]
	switch {
	case badFabricsFlags(sqe):
		return invalidField
	case s.unproven() && o.flags&opAuthentication == 0:
		return authenticationRequired
	case o.execute == nil && s.ctrl != nil:
		return invalidOpcode
	case (s.ctrl == nil) != (o.flags&opUnconnected != 0):
		return sequenceError
	case o.flags&opAdminQueue != 0 && s.qid != 0:
		return invalidOpcode
	}
	c.op = o
	return o.prepare(c)
}

// psdtSGL is the only PSDT that fabrics allow for Admin and I/O commands: SGLs, and MPTR is an
// address (Base section 4.1.1, figure 91).
const psdtSGL = 1

// flagsMask selects PSDT and FUSE in byte 1 of a command.
const flagsMask = 0xC3

// badFabricsFlags checks byte 1 of a Fabrics command, which always uses SGLs (Base section 4.1.2,
// figure 95): nothing is fused, and PSDT is 10b with data, or 00b. Linux writes 01b as in all other
// commands, and its target accepts nothing else.
func badFabricsFlags(sqe *nvme.SQE) bool { return sqe.PSDT() == 3 || sqe.FUSE() != 0 }

// Abandon implements fabric.Handler. Between Prepare and Execute a command holds only its place at
// a limit, and the zero copy that EndZeroCopy ends.
func (h *Handler) Abandon(req *fabric.Request) {
	c := req.Command.(*cmd)
	h.stopWaiting(c)
	if c.pair != nil {
		c.pair.lost, c.pair = nvme.AbortedFailedFused, nil
	}
	c.traced = c.s.trace.Add(req, observe.NoStatus)
	c.s.abandoned = true
	c.req, c.op, c.ch = nil, nil, nil
}

// anaRefuses is the status of an I/O command if the state of its namespace does not allow it.
func (c *cmd) anaRefuses(a *ana.States) nvme.Status {
	if ns := c.namespace(); ns != nil {
		return a.Of(ns.Attributes().ANAGroup).Status()
	}
	return nvme.Success
}
