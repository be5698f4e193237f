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
// other commands go on. Which commands these are, and in which order they are refused, is a column
// of the tables of commands. The first of them that comes, refused or not, starts the time after
// which the controller ends. A host that sends none of them is idle and keeps its controller.

const (
	// reauthenticateLimit is how long a host has after its first command, in nanoseconds.
	reauthenticateLimit = int64(60e9)
	// reauthenticateStep is how long a host has to begin until another command is refused.
	reauthenticateStep = int64(10e9)
)

var errNotAgain = errors.New("the host did not authenticate again within " +
	time.Duration(reauthenticateLimit).String())

// asking is which command of a controller is refused next.
type asking uint32

const (
	askNone asking = iota
	// askFirst: one of againFirst, without Limited Retry. Linux sets that when it reads ahead, and
	// does not repeat such a command.
	askFirst
	// askAny: one of againFirst or againLater, since no suitable one has come for a while.
	askAny
	// askStarted is a flag besides: a command has started the time of the host.
	askStarted asking = 4
)

// reauthentication is that of a controller. It belongs to the admin reactor, but for ask.
type reauthentication struct {
	ask       atomic.Uint32 // asking
	proven    int64         // when the host last authenticated, by Loop.Now
	started   int64         // when a command came after it was due; 0: none has
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
	if p == nil || c.sub.discovery || !c.proof.Authenticates && generatedIdentity(c.info) == "" {
		return 0
	}
	return p.Reauthenticate
}

// authenticated begins the interval: so long ago the host has authenticated on the admin queue, or
// made the PSK with which it has connected.
func (c *controller) authenticated(ago time.Duration) {
	c.again.proven, c.again.started = c.h.loop.Now()-ago.Nanoseconds(), 0
	c.scheduleReauthentication()
}

// scheduleReauthentication sets the timer anew, also when the keys of the host have changed. A host
// keeps a time limit that has started. Admin reactor.
func (c *controller) scheduleReauthentication() {
	r := &c.again
	every := c.reauthenticates().Nanoseconds()
	if r.stopped || !c.proof.Proven.Load() || r.started != 0 && every > 0 {
		return
	}
	r.disarm()
	r.ask.Store(uint32(askNone))
	r.started = 0
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

// checkReauthentication asks the host, which is due, or ends the controller, whether that is
// enabled or not.
func (c *controller) checkReauthentication() {
	r := &c.again
	r.stopTimer = nil
	left := r.started + reauthenticateLimit - c.h.loop.Now()
	switch {
	case c.admin.auth != nil && c.admin.auth.running: // which has a deadline of its own
		left = reauthenticateStep
	case r.started == 0:
		c.askAgain(askFirst)
		return // commandCame goes on
	case left <= 0:
		c.endUnauthenticated()
		return
	default:
		c.askAgain(askAny | askStarted)
	}
	c.afterReauthentication(min(reauthenticateStep, left))
}

// askAgain makes the queues of a controller look at their commands with session.ask.
func (c *controller) askAgain(a asking) {
	c.again.ask.Store(uint32(a))
	for _, s := range c.allQueues() {
		s.h.post(func() { s.asking = true })
	}
}

// ask reports whether a command is refused because its host has to authenticate again. The command
// has an again gate other than againNone.
func (s *session) ask(c *cmd) bool {
	r := &s.ctrl.again
	a := asking(r.ask.Load())
	level := a &^ askStarted
	if level == askNone {
		s.asking = false
		return false
	}
	if c.admitted { // it has passed before it waited at a limit
		return false
	}
	repeated := c.op.again == againFirst && c.pair == nil &&
		c.req.SQE.RW().Flags()&nvme.RWLimitedRetry == 0
	refused := repeated || level == askAny && c.op.again >= againLater
	next := level | askStarted
	switch {
	case !refused && a == next:
		return false
	case repeated:
		next = askNone
	case refused:
		next = askFirst | askStarted // the command that Linux sends in place of this one
	}
	if !r.ask.CompareAndSwap(uint32(a), uint32(next)) {
		return false // another queue was faster
	}
	if a&askStarted == 0 {
		at := s.h.loop.Now()
		s.ctrl.h.post(func() { s.ctrl.commandCame(at) })
	}
	return refused
}

// commandCame starts the time that the host has. Admin reactor.
func (c *controller) commandCame(at int64) {
	r := &c.again
	if r.stopped || r.started != 0 || at < r.proven || c.reauthenticates() == 0 {
		return
	}
	r.started = c.h.loop.Now()
	c.peerLog().Info("host has to authenticate again", "subsystem", c.sub.nqn, "cntlid", c.cntlid,
		"host", c.hostNQN, "timeout", time.Duration(reauthenticateLimit))
	r.disarm()
	c.afterReauthentication(reauthenticateStep)
}

// endUnauthenticated ends the controller of a host that has not authenticated again.
func (c *controller) endUnauthenticated() {
	if c.failed != nil {
		return
	}
	c.t.auth.Late()
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
