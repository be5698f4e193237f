package target

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/association"
	"github.com/nvmf-target/nvmf-target/nvme/target/authn"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
)

// This file is in-band authentication of a queue, see ADR 0032. A host with a key authenticates
// each of its queues before anything else is served on them, within connectDeadline; it may do so
// again at any time.

// maxAuthReceive is the largest buffer of an Authentication Receive, in bytes. It bounds the zeroes
// that follow a message. Linux and SPDK receive into 4096 bytes; the specification names no limit.
const maxAuthReceive = 64 << 10

// authenticationRequired is the status of all other commands before that (Base section 4.2.3.2).
const authenticationRequired = nvme.AuthenticationRequired | nvme.DNR

var (
	errNoConnect       = errors.New("no successful Connect command in time")
	errUnfinished      = errors.New("the host did not authenticate in time")
	errKeptQueue       = errors.New("a PSK was generated, and nothing else is served on this queue")
	errUnauthenticated = errors.New("the host failed to authenticate")
	errHungUp          = errors.New("the connection ended before the host had authenticated")
	errNotAttached     = errors.New("the controller has this queue already, or has ended")
)

// SetHostPolicy sets how a host authenticates when it connects to a subsystem; nil: it does not,
// and may not connect where security requires it. Controllers that exist stay, at least until
// EnforceKeys, and their hosts authenticate with the new keys from now on.
func (t *Target) SetHostPolicy(nqn string, p *auth.Policy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.shared.Auth.SetPolicy(nqn, p)
	t.keysChanged = t.keysChanged || (before == nil) != (p == nil)
	t.reauthenticate(nqn, before, p)
}

// admitUnproven requires the host of a new controller to authenticate if it has a key, or
// refuses the host for now, after too many failures.
func (c *controller) admitUnproven() association.Refusal {
	// The PSK that an exchange has generated proves as much as the exchange.
	if c.Policy() == nil && !c.MustConcatenate || association.GeneratedPSK(c.Info) != "" {
		c.Proof.Proven.Store(true)
		return association.Refusal{}
	}
	if c.t.shared.Auth.Paused(c.HostNQN, c.Info.Remote.Addr()) {
		c.PeerLog().Report(event.AuthenticationPaused, "host", c.HostNQN, "timeout",
			authn.Pause, "hint", "compare the keys of both sides")
		return association.Busy
	}
	c.Proof.Authenticates = true
	return association.Refusal{}
}

// requireAuthentication makes the queue serve nothing else until its host has authenticated.
func (s *session) requireAuthentication() {
	s.exchange()
	s.table = nil
}

// exchange returns the exchange of the queue. The first call makes it.
func (s *session) exchange() *authn.Exchange {
	if s.auth == nil {
		c := s.ctrl
		chap := auth.NewController(c.HostNQN, c.calledAs, c.Target.Concatenation(s.qid, s.info))
		chap.MustConcatenate = s.mustConcatenate
		s.auth = s.h.t.shared.Auth.NewExchange(chap, c.HostNQN, s.info.Remote.Addr())
	}
	return s.auth
}

// unproven reports whether the host has to authenticate before anything else.
func (s *session) unproven() bool { return s.ctrl != nil && s.table == nil }

// authenticated reports whether the host has authenticated on the queue, or with its PSK. Reactor.
func (s *session) authenticated() bool {
	return s.ctrl != nil && !s.unproven() &&
		(s.auth != nil && s.auth.Proven || association.GeneratedPSK(s.info) != "")
}

// Authentications is how many exchanges have succeeded, and how many have failed or were not
// finished in time, each queue counted by itself. Any goroutine may call it.
func (t *Target) Authentications() (succeeded, failed uint64) {
	return t.shared.Auth.Counts()
}

// prepareAuth validates Authentication Send and Authentication Receive (Base sections 6.2 and 6.1).
func prepareAuth(c *cmd) nvme.Status {
	m := c.req.SQE.Auth()
	most := uint32(auth.MaxMessage)
	if c.req.SQE.FabricsType() == nvme.FabricsAuthReceive {
		most = maxAuthReceive
	}
	switch {
	case c.s.ctrl.Policy() == nil && !c.s.unproven() && (c.s.auth == nil || !c.s.auth.Running):
		return invalidOpcode // the host has no key, or no longer
	case !m.Protocol() || m.Length() == 0 || m.Length() > most:
		return invalidField
	case c.s.disconnecting():
		return sequenceError
	}
	return c.expect(m.Length())
}

// authSend passes a message of the host to a goroutine that processes it.
func authSend(h *Handler, c *cmd) {
	s := c.s
	x := s.exchange()
	if x.Busy() || s.ending != nil {
		h.finish(c, 0, sequenceError) // one message at a time
		return
	}
	m := make([]byte, c.req.Length)
	from := mem.NewCursor(c.req.Segs, 0)
	from.CopyTo(m)
	if free := s.q.HandOverBuffers(c.req); free != nil {
		free() // messages that wait hold no memory for data
	}
	if !x.Running && !s.unproven() { // once more; at first the deadline of Connect goes on
		s.startDeadline()
	}
	s.authCmd = c
	x.Send(m, s.ctrl.Policy(), s.q.Hold, h.post, func(r authn.Result) {
		s.authCmd = nil
		s.exchanged(r)
		h.finish(c, 0, nvme.Success)
	})
}

// authReceive returns the next message to the host.
func authReceive(h *Handler, c *cmd) {
	s := c.s
	x := s.auth
	if x == nil || x.Busy() || s.ending != nil {
		h.finish(c, 0, sequenceError)
		return
	}
	m, r := x.Message()
	s.exchanged(r)
	if int(c.req.Length) < len(m) {
		h.finish(c, 0, invalidField) // Linux refuses that as well; the host may ask again
		return
	}
	h.reply(c, 0, admin.Reply{Data: m}, 0)
	s.exchanged(x.Read())
}

// exchanged acts on the outcome of a message.
func (s *session) exchanged(r authn.Result) {
	if r&authn.Succeeded != 0 {
		s.serveProven()
	}
	if r&authn.Failed != 0 {
		s.authenticationFailed()
	}
	if r&authn.Ended != 0 {
		s.ending = errUnauthenticated
	}
}

// serveProven serves everything that the host is allowed.
func (s *session) serveProven() {
	c := s.ctrl
	psk, key := s.auth.TakePSK()
	if psk != nil {
		c.t.shared.Auth.AddPSK(c.HostNQN, &c.Proof, psk, key)
	}
	if s.mustConcatenate {
		s.logAuthenticated(true)
		return // nothing more is served until the host connects with the PSK
	}
	s.stopDeadline()
	s.auth.Proven = true
	created := s.qid == 0 && !c.Proof.Proven.Load()
	var other *controllers.Controller
	if created {
		other = c.sub.Prove(&c.Controller)
	}
	s.logAuthenticated(psk != nil)
	if other != nil {
		r := association.Duplicate(c.Made(), other.Made())
		s.refuseProven(fmt.Errorf("the host is connected as %v: %s", r.Expected, r.Hint))
		return
	}
	if s.unproven() {
		if s.table = &adminOps; s.qid > 0 {
			s.table = &ioOps
		}
		if err := s.allow(); err != nil {
			s.refuseProven(err)
			return
		}
	}
	if created {
		c.logCreated()
	}
	if s.qid == 0 {
		c.authenticated(0)
	}
}

// logAuthenticated logs an exchange on an admin queue. Exchanges on I/O queues are only counted: a
// controller has up to a thousand I/O queues, which repeat the proof of its admin queue.
func (s *session) logAuthenticated(generated bool) {
	c := s.ctrl
	if s.qid > 0 {
		return
	}
	hash, group, both := s.auth.Algorithms()
	args := []any{
		"hash", hash.String(), "dhgroup", group.String(), "bidirectional", both,
	}
	if generated {
		args = append(args, "psk", "generated")
	}
	c.Report(event.HostAuthenticated, args...)
}

// refuseProven ends a queue once its host has read that it has authenticated: the host may not have
// the queue.
func (s *session) refuseProven(why error) {
	s.report(event.ConnectRefused, "subsystem", s.ctrl.sub.NQN, "host", s.ctrl.HostNQN, "qid",
		s.qid, "err", why)
	s.table, s.ending = nil, why
}

// authenticationFailed logs a failure. Nothing more is served: the host reads the reason, and the
// queue ends.
func (s *session) authenticationFailed() {
	if !s.auth.Running && !s.unproven() { // otherwise one goes on
		s.startDeadline()
	}
	s.requireAuthentication()
	why, hint := s.auth.Failure()
	s.logUnauthenticated(event.AuthenticationFailed, why, hint)
}

// logUnauthenticated makes the record of an exchange that has failed, or was not finished. Each has
// a limit of its own, because anybody can begin an exchange and hang up.
func (s *session) logUnauthenticated(k *event.Kind, why error, hint string) {
	s.report(k, "subsystem", s.ctrl.sub.NQN, "host", s.ctrl.HostNQN, "qid", s.qid, "err",
		why.Error(), "hint", hint)
}

// endAuthentication ends an exchange with its queue, and the command that waits for it. It logs an
// exchange that has not ended, or that was required and has not begun.
func (s *session) endAuthentication() {
	x, why := s.auth, s.why
	if x.Unfinished(s.unproven()) {
		hint := "the host connects again, and authenticates then"
		switch {
		case x.Busy() && errors.Is(why, errUnfinished):
			hint = "the target is busy with other hosts that authenticate"
		case why == nil, errors.Is(why, errUnfinished):
			hint = "the host has given up, or has no key: nvme connect --dhchap-secret"
		}
		s.logUnauthenticated(event.AuthenticationNotFinished, cmp.Or(why, errHungUp), hint)
	}
	if x.Close() {
		s.h.finish(s.authCmd, 0, nvme.AbortedSQDeletion)
		s.authCmd = nil
	}
}

// startDeadline ends the queue unless its host connects, and authenticates if it has to, in time.
func (s *session) startDeadline() {
	s.stopDeadline = s.h.after(connectDeadline, func() {
		x, why := s.auth, errNoConnect
		if x != nil {
			if x.Proven && x.Busy() {
				s.startDeadline() // the target is late, and the queue in use
				return
			}
			why = errUnfinished
			if !x.Busy() && x.State() == auth.Authenticated && s.mustConcatenate {
				why = errKeptQueue // the host was to connect again, with the PSK
			}
			x.TimedOut()
		}
		s.disconnect(why)
	})
}

// allow makes the queue count for its host.
func (s *session) allow() error {
	if s.qid > 0 {
		if r := s.ctrl.attach(s, s.qid); !r.Status.OK() {
			return errNotAttached
		}
	}
	if err := s.q.Allow(); err != nil {
		return err
	}
	s.joinHost()
	s.trace.Start()
	return nil
}

// GeneratedPSK returns the PSK that a host has generated with this identity, see authn.Hosts.PSK.
// Any goroutine may call it.
func (t *Target) GeneratedPSK(hostNQN, identity string) *auth.TLSPSK {
	return t.shared.Auth.PSK(hostNQN, identity)
}
