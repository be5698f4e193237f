package target

import (
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

// Statuses of Connect. DNR makes a Linux host give up reconnecting, so it is set only where no
// later attempt can succeed: for a malformed command, for a host that is not allowed, and for a
// subsystem removed on purpose (final.go). An unknown subsystem may be configured again, and a
// controller may have expired.
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
	if !c.isConnect() {
		h.finish(c, 0, st)
		return
	}
	sqe := c.req.SQE.Connect()
	r := refusal{st: st}
	switch st.Code() {
	case nvme.InvalidField: // with which Connect must not fail (Base section 6.3)
		r = malformed(nvme.ConnectOffsetSGL1, "data of the host", "other data")
		if badFabricsFlags(&c.req.SQE) {
			r = malformed(nvme.ConnectOffsetFlags, "an SGL, not fused",
				fmt.Sprintf("%#02x", c.req.SQE.Flags()))
		}
	case nvme.ConnectIncompatibleFormat:
		r.expected, r.received = 0, sqe.RECFMT()
	case nvme.CommandSequenceError:
		r.expected, r.received = "one Connect", "another"
	case nvme.DataSGLLengthInvalid:
		r.expected, r.received = nvme.ConnectDataSize, c.req.HostLength
	}
	c.s.logRefused(sqe, nil, r)
	h.finish(c, uint64(r.field), r.st)
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
	unchanged := h.t.unchanged()
	r := s.checkConnect(sqe, data)
	if r.st.OK() {
		if sqe.QID() == 0 {
			r = s.connectAdmin(sqe, data)
		} else {
			r = s.connectIO(sqe, data)
		}
	}
	if !r.st.OK() {
		if r.final && unchanged() {
			r.st |= nvme.DNR
		}
		s.logRefused(sqe, data, r)
		h.finish(c, uint64(r.field), r.st)
		return
	}
	result := nvme.MakeConnectResult(s.ctrl.cntlid)
	if s.unproven() {
		if result |= nvme.ConnectATR; s.mustConcatenate {
			result |= nvme.ConnectASCR
		}
	} else {
		s.stopDeadline()
	}
	h.finish(c, uint64(result), nvme.Success)
}

// refusal is the refusal of a Connect; its zero value is none. expected is the required value of
// the field, received the value that it has. Both are for the log, and nil if no value would do.
type refusal struct {
	st                 nvme.Status
	field              nvme.InvalidParameter
	expected, received any
	hint               string // "": see logRefused
	final              bool   // with DNR, unless something changes meanwhile; see final.go
}

// logRefused logs the reason for the refusal of a Connect, and a remedy for the operator. data is
// nil if it could not be received.
func (s *session) logRefused(sqe *nvme.ConnectSQE, data *nvme.ConnectData, r refusal) {
	hint := "the host does not follow the specification"
	switch {
	case r.hint != "":
		hint = r.hint
	case r.st.Code() == nvme.ConnectControllerBusy:
		hint = "see the line before; if there is none, all controller IDs are taken"
	case r.field == nvme.InvalidInData(nvme.ConnectDataOffsetSUBNQN):
		hint = "no subsystem of the configuration has this NQN"
		if sqe.QID() > 0 {
			hint = "the controller is one of another subsystem, or this one was removed"
		}
	case r.field == nvme.InvalidInCommand(nvme.ConnectOffsetKATO):
		hint = "a keep alive timeout is a day at most"
	case r.field == nvme.InvalidInData(nvme.ConnectDataOffsetCNTLID):
		hint = "the controller has ended, or has another host or address; hosts connect a new one"
	case r.field == nvme.InvalidInCommand(nvme.ConnectOffsetSQSIZE) && sqe.SQSIZE() > 0:
		hint = "queue_depth is the limit; nvme connect --queue-size asks for less"
	}
	args := []any{
		"qid", sqe.QID(), "depth", int(sqe.SQSIZE()) + 1, "status", r.st.String(), "field",
		r.field.String(),
	}
	if data != nil {
		args = append(args, "subsystem", loggedNQN(&data.SUBNQN), "host",
			loggedNQN(&data.HOSTNQN))
	}
	if r.expected != nil {
		args = append(args, "expected", r.expected, "received", r.received)
	}
	s.h.t.strangerLog.Peer(s.info.Remote).Warn("connect refused", append(args, "hint", hint)...)
}

// loggedNQN is a peer's NQN for the log, no longer than an NQN may be; log/slog escapes it.
func loggedNQN(field *[nvme.NQNFieldSize]byte) string {
	nqn, err := nvme.ParseNQN(field)
	if err != nil && field[0] != 0 {
		return "(malformed)"
	}
	return nqn
}

// malformed refuses a Connect because of a field of the command.
func malformed(offset uint16, expected, received any) refusal {
	return refusal{
		st: connectMalformed, field: nvme.InvalidInCommand(offset), expected: expected,
		received: received,
	}
}

// badData refuses a Connect because of a field of its data.
func badData(st nvme.Status, offset uint16, expected, received any) refusal {
	return refusal{
		st: st, field: nvme.InvalidInData(offset), expected: expected, received: received,
	}
}

// tooDeep refuses a queue of more than most entries.
func tooDeep(sqe *nvme.ConnectSQE, most int) refusal {
	return malformed(nvme.ConnectOffsetSQSIZE, fmt.Sprintf("%d to %d entries", 2, most),
		int(sqe.SQSIZE())+1)
}

// checkConnect validates the fields common to admin and I/O queues.
func (s *session) checkConnect(sqe *nvme.ConnectSQE, data *nvme.ConnectData) refusal {
	switch {
	case sqe.SQSIZE() == 0:
		return tooDeep(sqe, s.info.MaxDepth)
	case s.info.QID >= 0 && int(sqe.QID()) != s.info.QID:
		// RDMA section 3.1.4: QID of the CM private data
		return malformed(nvme.ConnectOffsetQID, s.info.QID, sqe.QID())
	case sqe.QID() == 0 && sqe.KATO() > admin.MaxKeepAlive:
		return malformed(nvme.ConnectOffsetKATO, fmt.Sprintf("at most %d ms", admin.MaxKeepAlive),
			sqe.KATO())
	case sqe.QID() == 0 && data.HostID == [16]byte{}:
		// Base section 5.1.25.1.28: not zero over fabrics
		return badData(connectMalformed, nvme.ConnectDataOffsetHostID, "not 0", 0)
	}
	return refusal{}
}

// resolve reads the NQNs and finds the subsystem. A host that may not use the subsystem learns no
// more on an I/O queue than on an admin queue.
func (s *session) resolve(data *nvme.ConnectData, admin bool) (sub *subsystem, hostNQN string,
	r refusal,
) {
	const valid = "a valid NQN"
	subNQN, err := nvme.ParseNQN(&data.SUBNQN)
	if err != nil {
		return nil, "", badData(connectMalformed, nvme.ConnectDataOffsetSUBNQN, valid, err)
	}
	// A host without a name, as SPDK's perf and identify are, is served where any host is.
	if hostNQN, err = nvme.ParseNQN(&data.HOSTNQN); err != nil && data.HOSTNQN[0] != 0 {
		return nil, "", badData(connectMalformed, nvme.ConnectDataOffsetHOSTNQN, valid, err)
	}
	switch tls := s.info.TLS; {
	case tls == nil:
	case tls.HostNQN != hostNQN:
		r = badData(nvme.ConnectInvalidHost, nvme.ConnectDataOffsetHOSTNQN, tls.HostNQN, hostNQN)
		r.hint = "the PSK of TLS is that of another host"
		return nil, "", r
	case tls.SubNQN != subNQN:
		r = badData(connectRefused, nvme.ConnectDataOffsetSUBNQN, tls.SubNQN, subNQN)
		r.hint = "the PSK of TLS is for another subsystem: nvme gen-tls-key --subsysnqn"
		return nil, "", r
	case tls.Counts != nil && !tls.Counts():
		r = badData(connectRefused, nvme.ConnectDataOffsetSUBNQN, "a PSK that counts", subNQN)
		r.hint = "the tls_key of the host has changed since the TLS handshake, or has expired"
		return nil, "", r
	case tls.Generated != "" && !s.h.t.auth.PSKCounts(hostNQN, tls.Generated):
		return nil, "", generatedEnded(subNQN)
	}
	if sub = s.h.t.find(subNQN); sub == nil {
		r = badData(connectRefused, nvme.ConnectDataOffsetSUBNQN, "a subsystem of the target",
			subNQN)
		if s.h.t.isGone(subNQN) {
			r.final = true
			r.hint = "the subsystem was removed; hosts end their controllers"
		}
		return nil, "", r
	}
	hasKey := s.h.t.hasKey(hostNQN)
	s.mustConcatenate = admin && hasKey && !sub.discovery && s.concatenation() == auth.NewPSK &&
		sub.settings.Load().Security&SecurityTLS != 0
	if err := sub.permits(s, hostNQN, hasKey); err != nil {
		return nil, "", sub.refused(err, s, hostNQN)
	}
	return sub, hostNQN, refusal{}
}

// connectAdmin makes a controller.
func (s *session) connectAdmin(sqe *nvme.ConnectSQE, data *nvme.ConnectData) refusal {
	if s.h.t.closed.Load() {
		return refusal{st: nvme.ConnectControllerBusy}
	}
	sub, hostNQN, r := s.resolve(data, true)
	if !r.st.OK() {
		return r
	}
	if data.CNTLID != nvme.CNTLIDDynamic {
		// dynamic controllers only
		return badData(connectMalformed, nvme.ConnectDataOffsetCNTLID,
			fmt.Sprintf("%#x", nvme.CNTLIDDynamic), fmt.Sprintf("%#x", data.CNTLID))
	}
	c := newController(s, sub, hostNQN, data.HostID)
	c.calledAs, _ = nvme.ParseNQN(&data.SUBNQN)
	if most := c.adminEntries(); int(sqe.SQSIZE()) >= most {
		return tooDeep(sqe, most)
	}
	if r := c.admitUnproven(); !r.st.OK() {
		return r
	}
	if r := sub.admit(c); !r.st.OK() {
		return r
	}
	var age time.Duration // of the proof
	if psk := generatedIdentity(c.info); psk != "" {
		var ok bool
		if age, ok = s.h.t.auth.UsePSK(hostNQN, psk, &c.proof); !ok {
			c.again.stop()
			sub.remove(c)
			return generatedEnded(c.calledAs)
		}
	}
	s.ctrl, s.table = c, &adminOps
	if c.proof.Authenticates {
		s.requireAuthentication()
	}
	if !s.establish(sqe) {
		s.ctrl, s.table, s.auth = nil, nil, nil
		c.again.stop()
		sub.remove(c)
		return refusal{st: nvme.ConnectControllerBusy}
	}
	c.setKeepAlive(sqe.KATO())
	c.startLimit()
	if c.proof.Proven.Load() {
		c.logCreated()
		c.authenticated(age)
	}
	sub.mu.Lock()
	o := sub.otherHost(c)
	sub.mu.Unlock()
	if o != nil {
		what := "host is connected with another host identifier as well"
		if o.hostID == c.hostID {
			what = "another host has the same host identifier"
		}
		s.ctrl.peerLog().Warn(what, "subsystem", sub.nqn, "host", hostNQN, "other_remote",
			o.info.Remote)
	}
	return refusal{}
}

// generatedEnded refuses a queue, because the generated PSK of its connection has ended.
func generatedEnded(subNQN string) refusal {
	r := badData(connectRefused, nvme.ConnectDataOffsetSUBNQN, "a PSK that counts", subNQN)
	r.hint = "the PSK that the host has generated has ended, or the key with which it was; the " +
		"host has to make another one"
	return r
}

func hostRefused(nqn string) refusal {
	if nqn == "" {
		nqn = "no name"
	}
	r := badData(nvme.ConnectInvalidHost, nvme.ConnectDataOffsetHOSTNQN, "a host of the subsystem",
		nqn)
	r.final = true
	r.hint = "add the host to hosts of the subsystem, or set allow_any_host"
	return r
}

// connectIO adds an I/O queue to a controller of the same host on the same port, from the same
// address (see 0020): the identifiers of a host can be guessed. The status has no DNR, so that a
// host connects the whole controller again after a change of its address.
func (s *session) connectIO(sqe *nvme.ConnectSQE, data *nvme.ConnectData) refusal {
	sub, hostNQN, r := s.resolve(data, false)
	if !r.st.OK() {
		return r
	}
	c := sub.lookup(data.CNTLID)
	announced := s.info.CNTLID // by RDMA hosts; old ones leave it 0
	other := func(offset uint16, expected, received any) refusal {
		return badData(connectRefused, offset, expected, received)
	}
	const cntlid = nvme.ConnectDataOffsetCNTLID
	switch {
	case (c == nil || c.hostNQN != hostNQN) &&
		s.h.t.hasController(data.CNTLID, hostNQN, s.info.Remote):
		return other(nvme.ConnectDataOffsetSUBNQN, "the subsystem of the controller", sub.nqn)
	case c == nil:
		return other(cntlid, "a controller of the host", fmt.Sprintf("%#x", data.CNTLID))
	case s.info.QID > 0 && announced != 0 && announced != nvme.CNTLIDDynamic &&
		announced != data.CNTLID:
		return other(cntlid, fmt.Sprintf("%#x", announced), fmt.Sprintf("%#x", data.CNTLID))
	// Of a controller that is not its own a peer is told no more than of one that does not exist.
	case c.hostNQN != hostNQN:
		return other(cntlid, c.hostNQN, hostNQN)
	case c.info.Remote.Addr() != s.info.Remote.Addr():
		s.h.t.strangerLog.Peer(s.info.Remote).Warn(
			"I/O queue does not come from the address of its admin queue", "subsystem", sub.nqn,
			"host", hostNQN, "cntlid", c.cntlid, "qid", sqe.QID(), "other_remote", c.info.Remote)
		return other(cntlid, c.info.Remote.Addr(), s.info.Remote.Addr())
	// zero is to be ignored here (Base figure 546)
	case data.HostID != [16]byte{} && c.hostID != data.HostID:
		return other(nvme.ConnectDataOffsetHostID, fmt.Sprintf("%x", c.hostID),
			fmt.Sprintf("%x", data.HostID))
	case c.info.PortID != s.info.PortID || c.info.Transport != s.info.Transport:
		return other(cntlid, fmt.Sprintf("%v, port ID %d", c.info.Transport, c.info.PortID),
			fmt.Sprintf("%v, port ID %d", s.info.Transport, s.info.PortID))
	case (c.info.TLS == nil) != (s.info.TLS == nil) ||
		generatedIdentity(c.info) != generatedIdentity(s.info):
		return other(cntlid, "TLS as on the admin queue", "another")
	case sub.discovery:
		// no I/O queues (Base section 3.1.3.3)
		return malformed(nvme.ConnectOffsetQID, 0, sqe.QID())
	case int(sqe.SQSIZE()) >= min(c.entries(), s.info.MaxDepth):
		return tooDeep(sqe, min(c.entries(), s.info.MaxDepth))
	}
	qid := sqe.QID()
	s.ctrl, s.qid, s.table = c, qid, &ioOps
	// A host need not authenticate if it had no key when the controller was created.
	if c.proof.Authenticates &&
		(c.policy() != nil || sub.settings.Load().Security&SecurityAuth != 0) {
		s.requireAuthentication()
	}
	r = c.attach(s, qid)
	if r.st.OK() && !s.establish(sqe) {
		c.sessionEnded(s)
		r = refusal{st: nvme.ConnectControllerBusy}
	}
	if !r.st.OK() {
		s.ctrl, s.qid, s.table, s.auth = nil, 0, nil, nil
	}
	return r
}

// establish gives the queue its depth. It returns false if the transport lacks resources.
func (s *session) establish(sqe *nvme.ConnectSQE) bool {
	depth := int(sqe.SQSIZE()) + 1
	p := fabric.Allowed
	switch {
	case s.unproven():
		p = fabric.Unproven
	case s.ctrl.sub.discovery:
		p = fabric.Discovery
	}
	claim := fabric.Claim{
		Host: s.ctrl.hostNQN, Proven: s.info.TLS != nil, Admin: sqe.QID() == 0,
	}
	if err := s.q.SetDepth(depth, p, claim); err != nil {
		s.ctrl.peerLog().Warn("no resources for a queue", "host", s.ctrl.hostNQN, "qid", sqe.QID(),
			"depth", depth, "err", err)
		return false
	}
	s.setDepth(depth)
	if p == fabric.Allowed {
		s.joinHost()
		s.trace = new([TraceDepth]record)
	}
	s.noFlowControl = sqe.CATTR()&nvme.CATTRNoFlowControl != 0
	return true
}
