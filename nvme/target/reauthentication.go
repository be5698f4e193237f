package target

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// This file has hosts authenticate again at an interval (ADR 0032). Only a host can begin, so one
// command of a controller is completed with Authentication Required, without DNR: Linux then
// authenticates the admin queue and its I/O queues once more, and sends the command again. All
// other commands go on.

const (
	// reauthenticateLimit is how long a host has after its command, in nanoseconds.
	reauthenticateLimit = int64(60e9)
	// reauthenticateStep is how long a host has to begin until another command is refused.
	reauthenticateStep = int64(10e9)
)

var errNotAgain = errors.New("the host did not authenticate again within " +
	time.Duration(reauthenticateLimit).String())

// asking says which command of a controller is to be refused.
type asking uint32

const (
	askNone asking = iota
	// askRetried: a Read or Write without Limited Retry, which Linux has in those that it does not
	// repeat, because they read ahead.
	askRetried
	askAny // any Read or Write: no other one has come for a while
)

// reauthentication is that of a controller. It belongs to the admin reactor, but for ask.
type reauthentication struct {
	ask       atomic.Uint32 // asking
	proven    int64         // when the host last authenticated, by Loop.Now
	asked     int64         // when a command was first refused after that; 0: none was
	stopped   bool
	stopTimer func()
}

func (r *reauthentication) disarm() {
	if r.stopTimer != nil {
		r.stopTimer()
		r.stopTimer = nil
	}
}

func (r *reauthentication) stop() {
	r.stopped = true
	r.ask.Store(uint32(askNone))
	r.disarm()
}

// reauthenticates returns how long an authentication of the host is good for, 0: for ever. A host
// that has lost its key cannot authenticate, and one that had none when it connected does not.
func (c *controller) reauthenticates() time.Duration {
	p := c.policy()
	if p == nil || c.sub.discovery || !c.authenticates && generatedIdentity(c.info) == "" {
		return 0
	}
	return p.Reauthenticate
}

// authenticated begins the interval: so long ago the host has authenticated on the admin queue, or
// made the PSK with which it has connected.
func (c *controller) authenticated(ago time.Duration) {
	c.again.proven, c.again.asked = c.h.loop.Now()-ago.Nanoseconds(), 0
	c.scheduleReauthentication()
}

// scheduleReauthentication sets the timer anew, also when the keys of the host have changed. A host
// that has been asked keeps its time. Admin reactor.
func (c *controller) scheduleReauthentication() {
	r := &c.again
	every := c.reauthenticates().Nanoseconds()
	if r.stopped || !c.proven.Load() || r.asked != 0 && every > 0 {
		return
	}
	r.disarm()
	r.ask.Store(uint32(askNone))
	r.asked = 0
	if every > 0 {
		// Controllers that were created together are due one after the other, up to a tenth
		// earlier: exchanges take turns, and their records have limits.
		every -= every / 640 * int64(c.cntlid%64)
		c.afterReauthentication(max(r.proven+every-c.h.loop.Now(), 0))
	}
}

func (c *controller) afterReauthentication(d int64) {
	c.again.stopTimer = c.h.after(d, c.checkReauthentication)
}

// checkReauthentication asks the host, which is due, or ends the controller.
func (c *controller) checkReauthentication() {
	r := &c.again
	r.stopTimer = nil
	now := c.h.loop.Now()
	waits := reauthenticateStep
	switch before := asking(r.ask.Load()); {
	case c.admin.auth != nil && c.admin.auth.running: // which has a deadline of its own
	case !c.ready.Load(): // disabled, or shut down, see startLimit
	case r.asked != 0 && now-r.asked >= reauthenticateLimit:
		c.endUnauthenticated()
		return
	case r.asked == 0 && before == askNone:
		c.askAgain(askRetried)
	case r.asked == 0 && before == askAny:
		return // the host is idle, see commandRefused
	default:
		c.askAgain(askAny)
	}
	if left := r.asked + reauthenticateLimit - now; r.asked != 0 && left > 0 {
		waits = min(waits, left)
	}
	c.afterReauthentication(waits)
}

// askAgain has the next command refused that a may be asked with.
func (c *controller) askAgain(a asking) {
	c.again.ask.Store(uint32(a))
	c.mu.Lock()
	list := c.ioQueues()
	c.mu.Unlock()
	for _, s := range list {
		s.h.post(s.watchCommands)
	}
}

// watchCommands has the Reads and Writes of an I/O queue looked at. Reactor of s.
func (s *session) watchCommands() {
	if s.table == &ioOps {
		s.table = &askingOps
	}
}

// prepareAsking prepares a Read or Write of a controller whose host is to authenticate again, or
// refuses it for that.
func prepareAsking(c *cmd) nvme.Status {
	s := c.s
	r := &s.ctrl.again
	c.op = &ioOps[c.req.SQE.Opcode()]
	a := asking(r.ask.Load())
	if a == askNone {
		s.table = &ioOps
		return c.op.prepare(c)
	}
	retried := c.req.SQE.RW().Flags()&nvme.RWLimitedRetry == 0
	if c.pair != nil || c.admitted || !retried && a != askAny {
		return c.op.prepare(c)
	}
	next := askNone
	if !retried {
		next = askRetried // the command that Linux sends in place of this one
	}
	if !r.ask.CompareAndSwap(uint32(a), uint32(next)) {
		return c.op.prepare(c)
	}
	at := s.h.loop.Now()
	s.ctrl.h.post(func() { s.ctrl.commandRefused(at) })
	return nvme.AuthenticationRequired
}

// commandRefused begins the time that the host has. Admin reactor.
func (c *controller) commandRefused(at int64) {
	r := &c.again
	if r.stopped || r.asked != 0 || at < r.proven || c.reauthenticates() == 0 {
		return
	}
	r.asked = c.h.loop.Now()
	c.peerLog().Info("host has to authenticate again", "subsystem", c.sub.nqn, "cntlid", c.cntlid,
		"host", c.hostNQN, "timeout", time.Duration(reauthenticateLimit))
	r.disarm()
	c.afterReauthentication(reauthenticateStep)
}

// endUnauthenticated ends a controller whose host has not authenticated again.
func (c *controller) endUnauthenticated() {
	if c.failed != nil {
		return
	}
	c.t.auth.late()
	hint := "the host must support it (Linux does), without dm-multipath; or delete reauthenticate"
	c.peerLog().Warn("authentication failed", "subsystem", c.sub.nqn, "cntlid", c.cntlid, "host",
		c.hostNQN, "err", errNotAgain, "hint", hint)
	c.stopIO()
	c.fail(&failure{errNotAgain.Error()})
}

// reauthenticate has the controllers of a host look at a changed policy.
func (t *Target) reauthenticate(hostNQN string, before, now *auth.Policy) {
	interval := func(p *auth.Policy) time.Duration {
		if p == nil {
			return 0
		}
		return p.Reauthenticate
	}
	if interval(before) == interval(now) {
		return
	}
	for _, s := range *t.table.Load() {
		s.each(func(c *controller) {
			if c.hostNQN == hostNQN {
				c.h.post(c.scheduleReauthentication)
			}
		})
	}
}
