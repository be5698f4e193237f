package target

import (
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Statuses of Connect. DNR makes a Linux host give up reconnecting, so only what no later attempt
// can cure carries it: a malformed command and a host that is not allowed. An unknown subsystem may
// be configured again, a controller may have expired.
const (
	connectMalformed = nvme.ConnectInvalidParameters | nvme.DNR
	connectRefused   = nvme.ConnectInvalidParameters
)

// prepareConnect validates what lies in the command (Base section 6.3).
func prepareConnect(c *cmd) nvme.Status {
	if c.req.SQE.Connect().RECFMT() != 0 {
		return nvme.ConnectIncompatibleFormat | nvme.DNR
	}
	return c.expect(nvme.ConnectDataSize)
}

// refuse completes a command that the transport or Prepare refused.
func (h *Handler) refuse(c *cmd, st nvme.Status) {
	var at nvme.InvalidParameter
	// which a Connect must not fail with (Base section 6.3)
	if c.isConnect() && st.Code() == nvme.InvalidField {
		st, at = connectMalformed, nvme.InvalidInCommand(nvme.ConnectOffsetSGL1)
		if badFabricsFlags(&c.req.SQE) {
			at = nvme.InvalidInCommand(nvme.ConnectOffsetFlags)
		}
	}
	h.finish(c, uint64(at), st)
}

// connect carries out Connect. The result of a refusal names the field.
func connect(h *Handler, c *cmd) {
	s := c.s
	if s.ctrl != nil {
		h.finish(c, 0, sequenceError) // two Connects raced
		return
	}
	var raw [nvme.ConnectDataSize]byte
	if copyOut(raw[:], c.req.Segs, 0) != len(raw) {
		h.finish(c, 0, nvme.InternalError)
		return
	}
	data, _ := nvme.ParseConnectData(raw[:]) // reserved fields are ignored
	sqe := c.req.SQE.Connect()
	at, st := s.checkConnect(sqe, data)
	if st.OK() {
		if sqe.QID() == 0 {
			at, st = s.connectAdmin(sqe, data)
		} else {
			at, st = s.connectIO(sqe, data)
		}
	}
	if !st.OK() {
		h.warn("connect refused", "remote", s.info.Remote, "qid", sqe.QID(), "subsystem",
			shown(&data.SUBNQN), "host", shown(&data.HOSTNQN),
			"status", st.String(), "offset", at.IPO(), "in_data", at.InData())
		h.finish(c, uint64(at), st)
		return
	}
	s.stopDeadline()
	h.finish(c, uint64(nvme.MakeConnectResult(s.ctrl.cntlid)), nvme.Success)
}

// shown is a peer's name for the log, no longer than a name may be; log/slog escapes it.
func shown(field *[nvme.NQNFieldSize]byte) string {
	nqn, err := nvme.ParseNQN(field)
	if err != nil {
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
	case sqe.QID() == 0 && data.HostID == [16]byte{}:
		// Base section 5.1.25.1.28: not zero over fabrics
		return nvme.InvalidInData(nvme.ConnectDataOffsetHostID), connectMalformed
	}
	return 0, nvme.Success
}

// names reads the NQNs and finds the subsystem.
func (s *session) names(data *nvme.ConnectData) (sub *subsystem, hostNQN string,
	at nvme.InvalidParameter, st nvme.Status,
) {
	subNQN, err := nvme.ParseNQN(&data.SUBNQN)
	if err != nil {
		return nil, "", nvme.InvalidInData(nvme.ConnectDataOffsetSUBNQN), connectMalformed
	}
	if hostNQN, err = nvme.ParseNQN(&data.HOSTNQN); err != nil {
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
	sub, hostNQN, at, st := s.names(data)
	switch {
	case !st.OK():
		return at, st
	case !sub.allows(hostNQN):
		return nvme.InvalidInData(nvme.ConnectDataOffsetHOSTNQN), nvme.ConnectInvalidHost | nvme.DNR
	case data.CNTLID != nvme.CNTLIDDynamic:
		// dynamic controllers only
		return nvme.InvalidInData(nvme.ConnectDataOffsetCNTLID), connectMalformed
	}
	c := newController(s, sub, hostNQN, data.HostID)
	if int(sqe.SQSIZE()) >= c.entries() {
		return nvme.InvalidInCommand(nvme.ConnectOffsetSQSIZE), connectMalformed
	}
	if st, at := sub.admit(c); !st.OK() {
		return at, st
	}
	s.ctrl = c
	if !s.establish(sqe) {
		s.ctrl = nil
		sub.release(c)
		return 0, nvme.ConnectControllerBusy
	}
	s.table = &adminOps
	c.startKeepAlive(sqe.KATO())
	c.started()
	return 0, nvme.Success
}

// connectIO binds an I/O queue to a controller of the same host on the same port.
func (s *session) connectIO(sqe *nvme.ConnectSQE, data *nvme.ConnectData) (nvme.InvalidParameter,
	nvme.Status,
) {
	sub, hostNQN, at, st := s.names(data)
	if !st.OK() {
		return at, st
	}
	c := sub.lookup(data.CNTLID)
	announced := s.info.CNTLID // by RDMA hosts; old ones leave it 0
	switch {
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

// establish gives the queue its depth. False means that the transport has no resources.
func (s *session) establish(sqe *nvme.ConnectSQE) bool {
	depth := int(sqe.SQSIZE()) + 1
	if err := s.q.SetDepth(depth); err != nil {
		s.h.warn("no resources for a queue", "remote", s.info.Remote, "depth", depth, "err", err)
		return false
	}
	s.reserve(depth)
	s.size = uint32(depth)
	s.noFlow = sqe.CATTR()&nvme.CATTRNoFlowControl != 0
	return true
}

// prepareDisconnect validates a Disconnect command (Base section 6.4).
func prepareDisconnect(c *cmd) nvme.Status {
	switch {
	case c.req.SQE.Connect().RECFMT() != 0: // in the same place
		return nvme.ConnectIncompatibleFormat | nvme.DNR
	case c.s.qid == 0:
		return nvme.InvalidQueueType | nvme.DNR
	case c.s.leaving != nil || c.s.left:
		return sequenceError
	}
	return c.expect(0)
}

// disconnect deletes an I/O queue when its other commands are done.
func disconnect(h *Handler, c *cmd) {
	s := c.s
	if s.leaving != nil || s.left {
		h.finish(c, 0, sequenceError)
		return
	}
	s.leaving = c
	if s.outstanding == 1 {
		s.leave()
	}
}
