package target

import (
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Statuses of Connect. DNR makes a Linux host give up reconnecting, so it goes only with what no
// later attempt can cure: a malformed command and a host that is not allowed. An unknown subsystem
// may be configured again, and a controller may have expired.
const (
	connectMalformed = nvme.ConnectInvalidParameters | nvme.DNR
	connectRefused   = nvme.ConnectInvalidParameters
)

// prepareConnect validates the command itself (Base section 6.3).
func prepareConnect(c *cmd) nvme.Status {
	if c.req.SQE.Connect().RECFMT() != 0 {
		return nvme.ConnectIncompatibleFormat | nvme.DNR
	}
	return c.expect(nvme.ConnectDataSize)
}

// refuse completes a command that the transport or Prepare refused.
func (h *Handler) refuse(c *cmd, st nvme.Status) {
	var field nvme.InvalidParameter
	// Connect must not fail with Invalid Field (Base section 6.3).
	if c.isConnect() && st.Code() == nvme.InvalidField {
		st, field = connectMalformed, nvme.InvalidInCommand(nvme.ConnectOffsetSGL1)
		if badFabricsFlags(&c.req.SQE) {
			field = nvme.InvalidInCommand(nvme.ConnectOffsetFlags)
		}
	}
	h.finish(c, uint64(field), st)
}

// connect carries out Connect. The result of a refusal names the field.
func connect(h *Handler, c *cmd) {
	s := c.s
	if s.ctrl != nil {
		h.finish(c, 0, sequenceError) // a second Connect was prepared before the first was executed
		return
	}
	var raw [nvme.ConnectDataSize]byte
	if data := mem.NewCursor(c.req.Segs, 0); data.CopyTo(raw[:]) != len(raw) {
		h.finish(c, 0, nvme.InternalError)
		return
	}
	data, _ := nvme.Parse[nvme.ConnectData](raw[:]) // reserved fields are ignored
	sqe := c.req.SQE.Connect()
	field, st := s.checkConnect(sqe, data)
	if st.OK() {
		if sqe.QID() == 0 {
			field, st = s.connectAdmin(sqe, data)
		} else {
			field, st = s.connectIO(sqe, data)
		}
	}
	if !st.OK() {
		s.logRefused(sqe, data, field, st)
		h.finish(c, uint64(field), st)
		return
	}
	s.stopDeadline()
	h.finish(c, uint64(nvme.MakeConnectResult(s.ctrl.cntlid)), nvme.Success)
}

// logRefused says why a Connect is refused, and what an operator can do about it.
func (s *session) logRefused(sqe *nvme.ConnectSQE, data *nvme.ConnectData,
	field nvme.InvalidParameter, st nvme.Status,
) {
	hint := "the host does not follow the specification"
	switch {
	case st.Code() == nvme.ConnectInvalidHost:
		hint = "add the host to hosts of the subsystem, or set allow_any_host"
	case st.Code() == nvme.ConnectControllerBusy:
		hint = "see the line before; if there is none, all controller IDs are taken"
	case field == nvme.InvalidInData(nvme.ConnectDataOffsetSUBNQN):
		hint = "no subsystem of the configuration has this NQN"
		if sqe.QID() > 0 {
			hint = "the controller is one of another subsystem, or this one was removed"
		}
	case field == nvme.InvalidInCommand(nvme.ConnectOffsetKATO):
		hint = "a keep alive timeout is a day at most"
	case field == nvme.InvalidInData(nvme.ConnectDataOffsetCNTLID):
		hint = "the controller has ended, or is another address's; hosts connect a new one"
	case field == nvme.InvalidInCommand(nvme.ConnectOffsetSQSIZE) && sqe.SQSIZE() > 0:
		hint = "queue_depth is the limit; nvme connect --queue-size asks for less"
	}
	s.h.t.strangerLog.Peer(s.info.Remote).Warn("connect refused", "qid", sqe.QID(), "subsystem",
		loggedNQN(&data.SUBNQN), "host", loggedNQN(&data.HOSTNQN), "depth", int(sqe.SQSIZE())+1,
		"status", st.String(), "field", field.String(), "hint", hint)
}

// loggedNQN is a peer's NQN for the log, no longer than an NQN may be; log/slog escapes it.
func loggedNQN(field *[nvme.NQNFieldSize]byte) string {
	nqn, err := nvme.ParseNQN(field)
	if err != nil && field[0] != 0 {
		return "(malformed)"
	}
	return nqn
}

// checkConnect validates what admin and I/O queues have in common.
func (s *session) checkConnect(sqe *nvme.ConnectSQE, data *nvme.ConnectData) (nvme.InvalidParameter,
	nvme.Status,
) {
	switch {
	case sqe.SQSIZE() == 0:
		return nvme.InvalidInCommand(nvme.ConnectOffsetSQSIZE), connectMalformed
	case s.info.QID >= 0 && int(sqe.QID()) != s.info.QID:
		// RDMA section 3.1.4: QID of the CM private data
		return nvme.InvalidInCommand(nvme.ConnectOffsetQID), connectMalformed
	case sqe.QID() == 0 && sqe.KATO() > maxKeepAlive:
		return nvme.InvalidInCommand(nvme.ConnectOffsetKATO), connectMalformed
	case sqe.QID() == 0 && data.HostID == [16]byte{}:
		// Base section 5.1.25.1.28: not zero over fabrics
		return nvme.InvalidInData(nvme.ConnectDataOffsetHostID), connectMalformed
	}
	return 0, nvme.Success
}

// resolve reads the NQNs and finds the subsystem.
func (s *session) resolve(data *nvme.ConnectData) (sub *subsystem, hostNQN string,
	field nvme.InvalidParameter, st nvme.Status,
) {
	subNQN, err := nvme.ParseNQN(&data.SUBNQN)
	if err != nil {
		return nil, "", nvme.InvalidInData(nvme.ConnectDataOffsetSUBNQN), connectMalformed
	}
	// A host without a name, as SPDK's perf and identify are, is served where any host is.
	if hostNQN, err = nvme.ParseNQN(&data.HOSTNQN); err != nil && data.HOSTNQN[0] != 0 {
		return nil, "", nvme.InvalidInData(nvme.ConnectDataOffsetHOSTNQN), connectMalformed
	}
	if sub = s.h.t.find(subNQN); sub == nil {
		return nil, "", nvme.InvalidInData(nvme.ConnectDataOffsetSUBNQN), connectRefused
	}
	return sub, hostNQN, 0, nvme.Success
}

// connectAdmin makes a controller.
func (s *session) connectAdmin(sqe *nvme.ConnectSQE, data *nvme.ConnectData) (nvme.InvalidParameter,
	nvme.Status,
) {
	if s.h.t.closed.Load() {
		return 0, nvme.ConnectControllerBusy
	}
	sub, hostNQN, field, st := s.resolve(data)
	switch {
	case !st.OK():
		return field, st
	case !sub.settings.Load().allows(hostNQN):
		return hostRefused()
	case data.CNTLID != nvme.CNTLIDDynamic:
		// dynamic controllers only
		return nvme.InvalidInData(nvme.ConnectDataOffsetCNTLID), connectMalformed
	}
	c := newController(s, sub, hostNQN, data.HostID)
	if int(sqe.SQSIZE()) >= c.adminEntries() {
		return nvme.InvalidInCommand(nvme.ConnectOffsetSQSIZE), connectMalformed
	}
	if field, st := sub.admit(c); !st.OK() {
		return field, st
	}
	s.ctrl = c
	if !s.establish(sqe) {
		s.ctrl = nil
		sub.remove(c)
		return 0, nvme.ConnectControllerBusy
	}
	s.table = &adminOps
	c.setKeepAlive(sqe.KATO())
	c.startLimit()
	c.logCreated()
	if o := sub.otherHostID(c); o != nil {
		s.ctrl.peerLog().Warn("host is connected with another host identifier as well",
			"subsystem", sub.nqn, "host", hostNQN, "other_remote", o.info.Remote)
	}
	return 0, nvme.Success
}

func hostRefused() (nvme.InvalidParameter, nvme.Status) {
	return nvme.InvalidInData(nvme.ConnectDataOffsetHOSTNQN), nvme.ConnectInvalidHost | nvme.DNR
}

// connectIO adds an I/O queue to a controller of the same host on the same port, from the same
// address (see 0020): the identifiers of a host can be guessed. The status has no DNR, so that a
// host whose address has changed connects the whole controller again.
func (s *session) connectIO(sqe *nvme.ConnectSQE, data *nvme.ConnectData) (nvme.InvalidParameter,
	nvme.Status,
) {
	sub, hostNQN, field, st := s.resolve(data)
	if !st.OK() {
		return field, st
	}
	c := sub.lookup(data.CNTLID)
	announced := s.info.CNTLID // by RDMA hosts; old ones leave it 0
	switch {
	case (c == nil || c.hostNQN != hostNQN) &&
		s.h.t.hasController(data.CNTLID, hostNQN, s.info.Remote):
		return nvme.InvalidInData(nvme.ConnectDataOffsetSUBNQN), connectRefused
	case c == nil || s.info.QID > 0 && announced != 0 && announced != nvme.CNTLIDDynamic &&
		announced != data.CNTLID:
		return nvme.InvalidInData(nvme.ConnectDataOffsetCNTLID), connectRefused
	case c.hostNQN != hostNQN:
		return nvme.InvalidInData(nvme.ConnectDataOffsetHOSTNQN), connectRefused
	// zero is to be ignored here (Base figure 546)
	case data.HostID != [16]byte{} && c.hostID != data.HostID:
		return nvme.InvalidInData(nvme.ConnectDataOffsetHostID), connectRefused
	case c.info.PortID != s.info.PortID || c.info.Transport != s.info.Transport:
		return nvme.InvalidInData(nvme.ConnectDataOffsetCNTLID), connectRefused
	case c.info.Remote.Addr() != s.info.Remote.Addr():
		s.h.t.strangerLog.Peer(s.info.Remote).Warn(
			"I/O queue does not come from the address of its admin queue", "subsystem", sub.nqn,
			"host", hostNQN, "cntlid", c.cntlid, "qid", sqe.QID(), "other_remote", c.info.Remote)
		return nvme.InvalidInData(nvme.ConnectDataOffsetCNTLID), connectRefused
	case sub.discovery:
		// no I/O queues (Base section 3.1.3.3)
		return nvme.InvalidInCommand(nvme.ConnectOffsetQID), connectMalformed
	case int(sqe.SQSIZE()) >= min(c.entries(), s.info.MaxDepth):
		return nvme.InvalidInCommand(nvme.ConnectOffsetSQSIZE), connectMalformed
	}
	qid := sqe.QID()
	switch st := c.attach(s, qid); {
	case st == nvme.ConnectInvalidParameters:
		return nvme.InvalidInCommand(nvme.ConnectOffsetQID), st
	case !st.OK():
		return 0, st
	}
	s.ctrl, s.qid, s.table = c, qid, &ioOps
	if !s.establish(sqe) {
		c.sessionEnded(s)
		s.ctrl, s.qid, s.table = nil, 0, nil
		return 0, nvme.ConnectControllerBusy
	}
	return 0, nvme.Success
}

// establish gives the queue its depth. It returns false if the transport lacks resources.
func (s *session) establish(sqe *nvme.ConnectSQE) bool {
	depth := int(sqe.SQSIZE()) + 1
	if err := s.q.SetDepth(depth, !s.ctrl.sub.discovery); err != nil {
		s.ctrl.peerLog().Warn("no resources for a queue", "depth", depth, "err", err)
		return false
	}
	s.setDepth(depth)
	if !s.ctrl.sub.discovery {
		s.joinHost(s.ctrl.hostNQN)
	}
	s.noFlowControl = sqe.CATTR()&nvme.CATTRNoFlowControl != 0
	return true
}

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
