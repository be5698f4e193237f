package target

import (
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
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
	r := association.Unread(&c.req.SQE, st, c.req.HostLength, badFabricsFlags(&c.req.SQE))
	c.s.logRefused(sqe, nil, r)
	h.finish(c, uint64(r.Field), r.Status)
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
	unchanged := h.t.final.Unchanged()
	r := association.Check(sqe, data, s.info)
	if r.Status.OK() {
		if sqe.QID() == 0 {
			r = s.connectAdmin(sqe, data)
		} else {
			r = s.connectIO(sqe, data)
		}
	}
	if !r.Status.OK() {
		if r.Final && unchanged() {
			r.Status |= nvme.DNR
		}
		s.logRefused(sqe, data, r)
		h.finish(c, uint64(r.Field), r.Status)
		return
	}
	result := nvme.MakeConnectResult(s.ctrl.CNTLID)
	if s.unproven() {
		if result |= nvme.ConnectATR; s.mustConcatenate {
			result |= nvme.ConnectASCR
		}
	} else {
		s.stopDeadline()
	}
	h.finish(c, uint64(result), nvme.Success)
}

// logRefused logs the refusal of a Connect. data is nil if it could not be received.
func (s *session) logRefused(sqe *nvme.ConnectSQE, data *nvme.ConnectData, r association.Refusal) {
	s.report(event.ConnectRefused, r.Record(sqe, data)...)
}

// resolve reads the NQNs and finds the subsystem. A host that may not use the subsystem learns
// nothing more on an I/O queue than on an admin queue.
func (s *session) resolve(data *nvme.ConnectData, admin bool) (sub *subsystem, hostNQN string,
	r association.Refusal,
) {
	subNQN, hostNQN, r := association.Names(data, s.info.TLS)
	if !r.Status.OK() {
		return nil, "", r
	}
	t := &s.h.t.shared
	if psk := association.GeneratedPSK(s.info); psk != "" && !t.Auth.PSKCounts(hostNQN, psk) {
		return nil, "", association.PSKEnded(subNQN)
	}
	if sub = s.h.t.find(subNQN); sub == nil {
		return nil, "", association.Unknown(subNQN, s.h.t.final.IsGone(subNQN))
	}
	hasKey := t.Auth.Policy(hostNQN) != nil
	s.mustConcatenate = admin && hasKey && !sub.Discovery &&
		t.Concatenation(s.qid, s.info) == auth.NewPSK &&
		sub.Settings.Load().Security&subsystems.SecurityTLS != 0
	return sub, hostNQN, t.Admission(&sub.Subsystem, &subsystems.Applicant{
		NQN: hostNQN, Listener: *s.port.Listener.Load(), From: s.info.Remote.Addr(),
		Authenticated: hasKey, Encrypted: s.info.TLS != nil || s.mustConcatenate,
	})
}

// connectAdmin makes a controller.
func (s *session) connectAdmin(sqe *nvme.ConnectSQE, data *nvme.ConnectData) association.Refusal {
	if s.h.t.closed.Load() {
		return association.Busy
	}
	sub, hostNQN, r := s.resolve(data, true)
	if !r.Status.OK() {
		return r
	}
	if r := association.CheckAdmin(data); !r.Status.OK() {
		return r
	}
	c := newController(s, sub, hostNQN, data.HostID)
	c.calledAs, _ = nvme.ParseNQN(&data.SUBNQN)
	if most := c.AdminEntries(); int(sqe.SQSIZE()) >= most {
		return association.TooDeep(sqe, most)
	}
	if r := c.admitUnproven(); !r.Status.OK() {
		return r
	}
	if r := sub.Admit(&c.Controller, c.Admission); !r.Status.OK() {
		return r
	}
	var age time.Duration // of the proof
	if psk := association.GeneratedPSK(c.Info); psk != "" {
		var ok bool
		if age, ok = s.h.t.shared.Auth.UsePSK(hostNQN, psk, &c.Proof); !ok {
			c.reauth.stop()
			sub.Remove(&c.Controller)
			return association.PSKEnded(c.calledAs)
		}
	}
	s.ctrl, s.table = c, &adminOps
	s.queue.Host, s.queue.Admin = c.Identity, true
	if c.Proof.Authenticates {
		s.requireAuthentication()
	}
	if !s.establish(sqe) {
		s.ctrl, s.table, s.auth = nil, nil, nil
		c.reauth.stop()
		sub.Remove(&c.Controller)
		return association.Busy
	}
	c.setKeepAlive(sqe.KATO())
	c.startLimit()
	if c.Proof.Proven.Load() {
		c.logCreated()
		c.authenticated(age)
	}
	if o := sub.Other(&c.Controller); o != nil {
		kind := event.OtherHostIdentifier
		if o.HostID == c.HostID {
			kind = event.SameHostIdentifier
		}
		s.ctrl.PeerLog().Report(kind, "subsystem", sub.NQN, "host", hostNQN, "other_remote",
			o.Info.Remote)
	}
	return association.Refusal{}
}

// connectIO adds an I/O queue to a controller.
func (s *session) connectIO(sqe *nvme.ConnectSQE, data *nvme.ConnectData) association.Refusal {
	sub, hostNQN, r := s.resolve(data, false)
	if !r.Status.OK() {
		return r
	}
	found := sub.Lookup(data.CNTLID)
	r = association.CheckIO(sqe, data, s.info, sub.NQN, hostNQN, found.Made(), func() bool {
		return s.h.t.hasController(data.CNTLID, hostNQN, s.info.Remote)
	})
	if r.Elsewhere {
		s.report(event.OtherAddress, "subsystem", sub.NQN, "host", hostNQN, "cntlid", found.CNTLID,
			"qid", sqe.QID(), "other_remote", found.Info.Remote)
	}
	if !r.Status.OK() {
		return r
	}
	c := found.Owner.(*controller)
	qid := sqe.QID()
	s.ctrl, s.qid, s.table = c, qid, &ioOps
	s.queue.Host, s.queue.Admin = c.Identity, false
	// A host need not authenticate if it had no key when the controller was created.
	if c.Proof.Authenticates &&
		(c.Policy() != nil || sub.Settings.Load().Security&subsystems.SecurityAuth != 0) {
		s.requireAuthentication()
	}
	r = c.attach(s, qid)
	if r.Status.OK() && !s.establish(sqe) {
		c.sessionEnded(s)
		r = association.Busy
	}
	if !r.Status.OK() {
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
	case s.ctrl.sub.Discovery:
		p = fabric.Discovery
	}
	claim := fabric.Claim{
		Host: s.ctrl.HostNQN, Proven: s.info.TLS != nil, Admin: sqe.QID() == 0,
	}
	if err := s.q.SetDepth(depth, p, claim); err != nil {
		s.ctrl.PeerLog().Report(event.NoQueueResources, "host", s.ctrl.HostNQN, "qid", sqe.QID(),
			"depth", depth, "err", err)
		return false
	}
	s.setDepth(depth)
	if p == fabric.Allowed {
		s.joinHost()
		s.trace.Start()
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
