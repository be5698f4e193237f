package target

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/authn"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
)

// This file is in-band authentication of a queue, see ADR 0032. A host with a key authenticates
// each of its queues before anything else is served on them, within connectDeadline; it may do so
// again at any time.

// maxAuthReceive is the largest buffer of an Authentication Receive, in bytes. It bounds the zeroes
// behind a message. Linux and SPDK receive into 4096 bytes; the specification names no limit.
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

// authentication is that of one queue. It belongs to the queue's reactor, but for chap while job
// has it.
type authentication struct {
	s       *session
	chap    *auth.Controller
	running bool     // an exchange has begun and has not succeeded
	proven  bool     // one has succeeded
	job     *authJob // processes a message, nil if none does
	cmd     *cmd     // the Authentication Send of job
}

// authJob is a message to process.
type authJob struct {
	turns.Job
	failed bool // the exchange had failed before
}

// SetHostPolicy sets how a host authenticates when it connects to a subsystem; nil: it does not,
// and may not connect where security requires it. Controllers that exist stay, at least until
// EnforceKeys, and their hosts authenticate with the new keys from now on.
func (t *Target) SetHostPolicy(nqn string, p *auth.Policy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.auth.SetPolicy(nqn, p)
	t.keysChanged = t.keysChanged || (before == nil) != (p == nil)
	t.reauthenticate(nqn, before, p)
}

// policy returns the present policy of the host, or nil if the host has no key. It is nil also for
// a discovery controller that requires no authentication: as in nvmet, anybody may read the
// discovery log.
func (c *controller) policy() *auth.Policy {
	if c.sub.discovery && !c.proof.Authenticates &&
		c.sub.settings.Load().Security&SecurityAuth == 0 {
		return nil
	}
	return c.t.auth.Policy(c.hostNQN)
}

// admitUnproven makes the host of a new controller authenticate if it has a key, or refuses it for
// now.
func (c *controller) admitUnproven() refusal {
	// The PSK that an exchange has generated proves as much as the exchange.
	if c.policy() == nil && !c.admin.mustConcatenate || generatedIdentity(c.info) != "" {
		c.proof.Proven.Store(true)
		return refusal{}
	}
	if c.t.auth.Paused(c.hostNQN, c.info.Remote.Addr()) {
		c.peerLog().Warn("too many failed authentications of this host and address", "host",
			c.hostNQN, "timeout", authn.Pause, "hint", "compare the keys of both sides")
		return refusal{st: nvme.ConnectControllerBusy}
	}
	c.proof.Authenticates = true
	return refusal{}
}

// requireAuthentication serves nothing else on a queue until its host has authenticated.
func (s *session) requireAuthentication() {
	if s.auth == nil {
		s.auth = newAuthentication(s)
	}
	s.table = nil
}

func newAuthentication(s *session) *authentication {
	chap := auth.NewController(s.ctrl.hostNQN, s.ctrl.calledAs, s.concatenation())
	chap.MustConcatenate = s.mustConcatenate
	return &authentication{s: s, chap: chap}
}

// unproven reports whether the host has to authenticate before anything else.
func (s *session) unproven() bool { return s.ctrl != nil && s.table == nil }

// Authentications is how many exchanges have succeeded, and how many have failed or were not
// finished in time, each queue counted by itself. Any goroutine may call it.
func (t *Target) Authentications() (succeeded, failed uint64) {
	return t.auth.Counts()
}

// prepareAuth validates Authentication Send and Authentication Receive (Base sections 6.2 and 6.1).
func prepareAuth(c *cmd) nvme.Status {
	m := c.req.SQE.Auth()
	most := uint32(auth.MaxMessage)
	if c.req.SQE.FabricsType() == nvme.FabricsAuthReceive {
		most = maxAuthReceive
	}
	switch {
	case c.s.ctrl.policy() == nil && !c.s.unproven() && (c.s.auth == nil || !c.s.auth.running):
		return invalidOpcode // the host has no key, or no longer
	case !m.Protocol() || m.Length() == 0 || m.Length() > most:
		return invalidField
	case c.s.disconnecting():
		return sequenceError
	}
	return c.expect(m.Length())
}

// authSend has a message of the host processed, off the reactor.
func authSend(h *Handler, c *cmd) {
	s := c.s
	if s.auth == nil {
		s.auth = newAuthentication(s)
	}
	a := s.auth
	if a.job != nil || s.ending != nil {
		h.finish(c, 0, sequenceError) // one message at a time
		return
	}
	m := make([]byte, c.req.Length)
	from := mem.NewCursor(c.req.Segs, 0)
	from.CopyTo(m)
	if free := s.q.HandOverBuffers(c.req); free != nil {
		free() // messages that wait hold no memory for data
	}
	if !a.running && !s.unproven() { // once more; at first the deadline of Connect goes on
		s.startDeadline()
	}
	a.running = true
	policy := s.ctrl.policy()
	j := &authJob{failed: a.chap.State() == auth.Failed}
	j.From = s.info.Remote.Addr()
	j.Run = func() {
		s.q.Hold(true)
		a.chap.Sent(m, policy)
	}
	j.Done = func() { h.post(func() { a.sent(j) }) }
	a.job, a.cmd = j, c
	j.Known = h.t.auth.IsKnown(j.From)
	h.t.auth.Submit(&j.Job)
}

// sent is called when a message of the host has been processed.
func (a *authentication) sent(j *authJob) {
	a.s.q.Hold(false)
	if a.job != j { // the queue has ended
		a.chap.Wipe()
		return
	}
	c := a.cmd
	a.job, a.cmd = nil, nil
	switch a.chap.State() {
	case auth.Authenticated:
		a.succeeded()
	case auth.Failed:
		if !j.failed {
			a.failed()
		}
		if a.chap.Ended() { // the host reads nothing more
			a.s.ending = errUnauthenticated
		}
	}
	a.s.h.finish(c, 0, nvme.Success)
}

// authReceive returns the next message to the host.
func authReceive(h *Handler, c *cmd) {
	s := c.s
	a := s.auth
	if a == nil || a.job != nil || s.ending != nil {
		h.finish(c, 0, sequenceError)
		return
	}
	before := a.chap.State()
	m := a.chap.Message()
	if a.chap.State() != before {
		a.failed()
	}
	if int(c.req.Length) < len(m) {
		h.finish(c, 0, invalidField) // Linux refuses that as well; the host may ask again
		return
	}
	h.reply(c, 0, admin.Reply{Data: m}, 0)
	a.chap.Read()
	switch a.chap.State() {
	case auth.Authenticated:
		a.succeeded()
	case auth.Failed:
		s.ending = errUnauthenticated
	}
}

// succeeded serves everything that the host is allowed.
func (a *authentication) succeeded() {
	s := a.s
	c := s.ctrl
	a.running = false
	c.t.auth.Succeeded(c.hostNQN, s.info.Remote.Addr())
	psk, key := a.chap.TakePSK()
	if psk != nil {
		c.t.auth.AddPSK(c.hostNQN, &c.proof, psk, key)
	}
	if s.mustConcatenate {
		a.logSucceeded(true)
		return // nothing more is served until the host connects with the PSK
	}
	s.stopDeadline()
	a.proven = true
	created := s.qid == 0 && !c.proof.Proven.Load()
	var other *controller
	if created {
		other = c.sub.prove(c)
	}
	a.logSucceeded(psk != nil)
	if other != nil {
		r := duplicate(c, other)
		a.refuse(fmt.Errorf("the host is connected as %v: %s", r.expected, r.hint))
		return
	}
	if s.unproven() {
		if s.table = &adminOps; s.qid > 0 {
			s.table = &ioOps
		}
		if err := s.allow(); err != nil {
			a.refuse(err)
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

// logSucceeded logs an exchange on an admin queue. Exchanges on I/O queues are only counted: a
// controller has up to a thousand I/O queues, which repeat the proof of its admin queue.
func (a *authentication) logSucceeded(generated bool) {
	s, c := a.s, a.s.ctrl
	if s.qid > 0 {
		return
	}
	hash, group, both := a.chap.Algorithms()
	args := []any{
		"subsystem", c.sub.nqn, "cntlid", c.cntlid, "host", c.hostNQN, "hash", hash.String(),
		"dhgroup", group.String(), "bidirectional", both,
	}
	if generated {
		args = append(args, "psk", "generated")
	}
	c.peerLog().Info("host has authenticated", args...)
}

// refuse ends a queue after its host has authenticated: the host may not have the queue.
func (a *authentication) refuse(why error) {
	s := a.s
	s.h.t.strangerLog.Peer(s.info.Remote).Warn("connect refused", "subsystem", s.ctrl.sub.nqn,
		"host", s.ctrl.hostNQN, "qid", s.qid, "err", why)
	s.disconnect(why)
}

// failed counts and logs a failure. Nothing more is served: the host reads why, and the queue ends.
func (a *authentication) failed() {
	s := a.s
	if !a.running && !s.unproven() { // otherwise one goes on
		s.startDeadline()
	}
	s.requireAuthentication()
	r := a.chap.Reason()
	hint := "the keys of host and target differ, or a key of the controller is missing: " +
		"nvmf-target key check"
	switch r {
	case auth.HashNotUsable, auth.GroupNotUsable:
		hint = "dhchap_hash and dhchap_dhgroup of the host allow nothing that it offers"
	case auth.ConcatenationMismatch:
		hint = "secure channel concatenation needs a listener with tls: allowed, the admin " +
			"queue, and no other key for TLS"
		if s.mustConcatenate {
			hint = "security requires TLS: nvme connect with --concat, or --tls and a tls_key"
		}
	case auth.IncorrectPayload, auth.IncorrectMessage, auth.ProtocolNotUsable:
		hint = "the host does not follow the specification"
	}
	if a.chap.Expired() {
		hint = "the key of the host has expired: keys_until, or old_keys_until if it is an old one"
	}
	s.h.t.auth.Failed(s.ctrl.hostNQN, s.info.Remote.Addr())
	a.logRefused("authentication failed", r, hint)
}

// logRefused makes the record of an exchange that has failed, or was not finished. Each has a limit
// of its own, because anybody can begin an exchange and hang up.
func (a *authentication) logRefused(msg string, why error, hint string) {
	s := a.s
	s.h.t.strangerLog.Peer(s.info.Remote).Warn(msg, "subsystem", s.ctrl.sub.nqn, "host",
		s.ctrl.hostNQN, "qid", s.qid, "err", why.Error(), "hint", hint)
}

// logUnfinished logs an exchange that ends with its queue, or that was required and has not begun.
// Failed exchanges have been logged before.
func (a *authentication) logUnfinished() {
	switch {
	case a.job != nil && a.job.failed:
		return
	case a.job == nil && (a.chap.State() != auth.Unfinished || !a.running && !a.s.unproven()):
		return
	}
	why, hint := a.s.why, "the host connects again, and authenticates then"
	switch {
	case a.job != nil && errors.Is(why, errUnfinished):
		hint = "the target is busy with other hosts that authenticate"
	case why == nil, errors.Is(why, errUnfinished):
		hint = "the host has given up, or has no key: nvme connect --dhchap-secret"
	}
	if why == nil {
		why = errHungUp
	}
	a.logRefused("authentication not finished", why, hint)
}

// close ends the message in process and the command that waits for it.
func (a *authentication) close() {
	a.logUnfinished()
	if a.job == nil {
		a.chap.Wipe()
		return
	}
	c := a.cmd
	if a.s.h.t.auth.Cancel(&a.job.Job) {
		a.chap.Wipe()
	}
	a.job, a.cmd = nil, nil
	a.s.h.finish(c, 0, nvme.AbortedSQDeletion)
}

// startDeadline ends the queue unless its host connects, and authenticates if it has to, in time.
func (s *session) startDeadline() {
	s.stopDeadline = s.h.after(connectDeadline, func() {
		if s.auth != nil && s.auth.proven && s.auth.job != nil {
			s.startDeadline() // the target is late, and the queue in use
			return
		}
		why := errNoConnect
		if s.auth != nil {
			why = errUnfinished
		}
		if s.auth != nil && s.auth.job == nil { // the host is late, not the target
			switch s.auth.chap.State() {
			case auth.Unfinished:
				s.h.t.auth.Failed(s.ctrl.hostNQN, s.info.Remote.Addr())
			case auth.Authenticated:
				if s.mustConcatenate {
					why = errKeptQueue // the host was to connect again, with the PSK
				}
			case auth.Failed: // is counted
			}
		}
		s.disconnect(why)
	})
}

// allow makes the queue one of its host's.
func (s *session) allow() error {
	if s.qid > 0 {
		if r := s.ctrl.attach(s, s.qid); !r.st.OK() {
			return errNotAttached
		}
	}
	s.joinHost()
	if err := s.q.Allow(); err != nil {
		return err
	}
	s.trace = new([TraceDepth]record)
	return nil
}

// GeneratedPSK returns the PSK that a host has generated with this identity, see authn.Hosts.PSK.
// Any goroutine may call it.
func (t *Target) GeneratedPSK(hostNQN, identity string) *auth.TLSPSK {
	return t.auth.PSK(hostNQN, identity)
}

// generatedIdentity is the identity of the generated PSK that a connection uses, "" if none.
func generatedIdentity(q *fabric.QueueInfo) string {
	if q.TLS == nil {
		return ""
	}
	return q.TLS.Generated
}

// concatenation returns the possible purpose of an exchange on the queue besides authentication.
func (s *session) concatenation() auth.Concatenation {
	switch {
	case s.qid != 0 || s.info.Transport != nvme.TransportTCP:
	case s.info.TLS != nil:
		if s.info.TLS.Generated != "" {
			return auth.ReplacePSK
		}
	default:
		ports := s.h.t.discoveryTable.Load().Ports
		i := slices.IndexFunc(ports, func(p discovery.Port) bool { return p.ID == s.info.PortID })
		if i >= 0 && ports[i].TLS == fabric.TLSAllowed {
			return auth.NewPSK
		}
	}
	return auth.NoConcatenation
}
