package target

import (
	"errors"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/authn"
)

// This file has hosts authenticate again, see authn.Interval. The commands that are refused for it,
// and their order, are a column of the tables of commands.

var errNotAgain = errors.New("the host did not authenticate again within " +
	time.Duration(authn.Limit).String())

// reauthentication is that of a controller. The admin reactor owns it, but for Asks and Refuse.
type reauthentication struct {
	authn.Interval
	timer timer
}

func (r *reauthentication) stop() {
	r.Stop()
	r.timer.stop()
}

// authenticated begins the interval. ago is the time since the host authenticated on the admin
// queue, or made the PSK with which it has connected.
func (c *controller) authenticated(ago time.Duration) {
	c.reauth.Prove(c.h.loop.Now() - ago.Nanoseconds())
	c.scheduleReauthentication()
}

// scheduleReauthentication sets the timer, also when keys have changed. Admin reactor.
func (c *controller) scheduleReauthentication() {
	if !c.Proof.Proven.Load() {
		return
	}
	in, ok := c.reauth.Schedule(c.h.loop.Now(), c.Reauthenticates(), c.CNTLID)
	if ok {
		c.reauth.timer.stop()
		c.afterReauthentication(in)
	}
}

func (c *controller) afterReauthentication(in int64) {
	if in > 0 {
		c.reauth.timer.set(c.h, in, c.checkReauthentication)
	}
}

// checkReauthentication asks the host if that is due, or ends the controller, enabled or not.
func (c *controller) checkReauthentication() {
	act, in := c.reauth.Check(c.h.loop.Now(), c.admin.auth != nil && c.admin.auth.Running)
	switch act {
	case authn.Ask:
		for _, s := range c.allQueues() { // bound: subsystems.MaxIOQueues
			s.h.post(func() { s.asking = true })
		}
	case authn.End:
		c.endUnauthenticated()
	}
	c.afterReauthentication(in)
}

// ask reports whether a command is refused because its host has to authenticate again. The command
// has a reauth gate other than reauthNone. Of the commands of reauthFirst, Linux does not repeat
// those with Limited Retry, which it sets when it reads ahead.
func (s *session) ask(c *cmd) bool {
	reauth := &s.ctrl.reauth
	s.asking = reauth.Asks()
	if !s.asking || c.admitted { // the latter has passed before it waited at a limit
		return false
	}
	repeats := c.op.reauth == reauthFirst && c.pair == nil &&
		c.req.SQE.RW().Flags()&nvme.RWLimitedRetry == 0
	refused, started := reauth.Refuse(repeats, c.op.reauth >= reauthLater)
	if started {
		at := s.h.loop.Now()
		s.ctrl.h.post(func() { s.ctrl.commandCame(at) })
	}
	return refused
}

// commandCame starts the time that the host has. Admin reactor.
func (c *controller) commandCame(at int64) {
	if c.Reauthenticates() == 0 {
		return
	}
	if in := c.reauth.Came(c.h.loop.Now(), at); in > 0 {
		c.Report(event.AuthenticationDue, "timeout", time.Duration(authn.Limit))
		c.afterReauthentication(in)
	}
}

// endUnauthenticated ends the controller of a host that has not authenticated again.
func (c *controller) endUnauthenticated() {
	if c.failed != nil {
		return
	}
	c.t.shared.Auth.Late()
	hint := "the host must support it (Linux does), without dm-multipath; or delete reauthenticate"
	c.Report(event.AuthenticationFailed, "err", errNotAgain, "hint", hint)
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
			if c.HostNQN == hostNQN {
				c.h.post(c.scheduleReauthentication)
			}
		})
	}
}
