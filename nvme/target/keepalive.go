package target

import (
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

// keepAliveTimer is the keep alive timer of a controller.
type keepAliveTimer struct {
	admin.KeepAlive
	stopped bool
	timer   timer
	askedAt int64 // when a Keep Alive command has last looked at the queues
}

func (k *keepAliveTimer) stop() {
	k.stopped = true
	k.timer.stop()
}

// setKeepAlive restarts the timer with a timeout in milliseconds, at most admin.MaxKeepAlive; 0:
// off. It stores and returns the timeout that applies.
func (c *controller) setKeepAlive(ms uint32) uint32 {
	ms = admin.RoundKeepAlive(ms)
	c.Features[nvme.FeatureKeepAliveTimer] = ms
	k := &c.alive
	if k.stopped {
		return ms
	}
	k.timer.stop()
	if k.Start(ms, c.sub.Discovery, c.h.loop.Now(), c.traffic()) {
		c.startKeepAlive()
	}
	return ms
}

func (c *controller) startKeepAlive() {
	c.alive.timer.set(c.h, c.alive.Next(c.h.loop.Now()), c.checkKeepAlive)
}

// queuesPerStep is how many queues traffic looks at in a step.
const queuesPerStep = 16

// traffic is the number of commands that all queues have received. Each queue counts its own, so
// that the queues share nothing. Admin reactor.
func (c *controller) traffic() uint64 {
	n := c.admin.commands
	c.mu.Lock()
	defer c.mu.Unlock()
	c.h.steps.Add(len(c.queues) / queuesPerStep) // bound: subsystems.MaxIOQueues
	for _, s := range c.queues {
		n += s.activity.Load()
	}
	return n
}

func (c *controller) checkKeepAlive() {
	if !c.alive.Check(c.h.loop.Now(), c.traffic(), c.Ready.Load()) {
		c.startKeepAlive()
		return
	}
	c.CSTS |= nvme.CSTSFatal
	c.Report(event.KeepAliveExpired, "timeout", c.alive.Timeout())
	c.stopIO()
	c.fail(&failure{"keep alive timer expired after " + c.alive.Timeout().String()})
}

// keepAlive answers a Keep Alive command, which Prepare has counted as traffic.
func keepAlive(h *Handler, c *cmd) {
	st := nvme.Success
	k, now := &c.s.ctrl.alive, h.loop.Now()
	if k.askedAt != now { // hosts may send many at once
		k.askedAt = now
		k.Command(now, c.s.ctrl.traffic())
	}
	if k.Timeout() == 0 {
		st = nvme.KATOInvalid | nvme.DNR
	}
	h.finish(c, 0, st)
}
