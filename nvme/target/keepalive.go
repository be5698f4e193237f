package target

import (
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

const (
	// keepAliveGranularity is KAS of Identify Controller, in units of 100 ms: timeouts are rounded
	// up to it.
	keepAliveGranularity = 10
	// maxKeepAlive is the largest timeout, in milliseconds: a day. More is refused, since a timeout
	// is only ever rounded up (Base section 3.9).
	maxKeepAlive = 24 * 3600 * 1000
	// discoveryTimeout applies to a discovery controller whose host asked for no timeout (Base
	// section 3.1.3.3: two minutes).
	discoveryTimeout = int64(120e9)
	// keepAliveChecks is how often per period the timer looks for traffic.
	keepAliveChecks = 2
)

// keepAliveTimer watches the commands of all queues of a controller: with TBKAS any of them counts
// (Base section 3.9). Each queue counts its own commands, so that the queues share nothing.
type keepAliveTimer struct {
	period    int64 // nanoseconds; 0 is off
	seen      uint64
	lastSeen  int64 // when traffic was last noticed
	lastCheck int64
	stopped   bool
	stopTimer func()
}

func (k *keepAliveTimer) stop() {
	k.stopped = true
	k.disarm()
}

func (k *keepAliveTimer) disarm() {
	if k.stopTimer != nil {
		k.stopTimer()
		k.stopTimer = nil
	}
}

// setKeepAlive starts the timer anew with a timeout in milliseconds, at most maxKeepAlive; 0: off.
// It stores and returns the timeout that applies.
func (c *controller) setKeepAlive(ms uint32) uint32 {
	const unit = keepAliveGranularity * 100
	ms = (ms + unit - 1) / unit * unit
	c.features[nvme.FeatureKeepAliveTimer] = ms
	k := &c.alive
	if k.stopped {
		return ms
	}
	k.disarm()
	k.period = int64(ms) * 1e6
	if k.period == 0 && c.sub.discovery {
		k.period = discoveryTimeout
	}
	if k.period > 0 {
		k.lastSeen = c.h.loop.Now()
		k.lastCheck = k.lastSeen
		c.startKeepAlive()
	}
	return ms
}

// startKeepAlive sets the timer for the next check, at a time that is the same for all controllers
// with this period: an idle target wakes up once for all of them.
func (c *controller) startKeepAlive() {
	step := c.alive.period / keepAliveChecks
	c.alive.stopTimer = c.h.after(step-c.h.loop.Now()%step, c.checkKeepAlive)
}

// traffic is the number of commands that all queues have received.
func (c *controller) traffic() uint64 {
	n := c.admin.commands
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.queues {
		n += s.activity.Load()
	}
	return n
}

func (c *controller) checkKeepAlive() {
	k := &c.alive
	k.stopTimer = nil
	now := c.h.loop.Now()
	n := c.traffic()
	// If this process itself stood still, commands may wait unread: a check that comes late proves
	// nothing about the host.
	late := now-k.lastCheck > k.period
	k.lastCheck = now
	// A host cannot send Keep Alive while the controller is not enabled; disabledLimit holds then.
	if n != k.seen || late || !c.ready.Load() {
		k.seen, k.lastSeen = n, now
	}
	if now-k.lastSeen >= k.period {
		c.csts |= nvme.CSTSFatal
		c.peerLog().Warn("keep alive timer expired", "subsystem", c.sub.nqn, "cntlid",
			c.cntlid, "host", c.hostNQN, "timeout", time.Duration(k.period))
		c.stopIO()
		c.fail(&failure{"keep alive timer expired after " + time.Duration(k.period).String()})
		return
	}
	c.startKeepAlive()
}

// keepAlive answers a Keep Alive command, which Prepare has counted as traffic.
func keepAlive(h *Handler, c *cmd) {
	st := nvme.Success
	if c.s.ctrl.alive.period == 0 {
		st = nvme.KATOInvalid | nvme.DNR
	}
	h.finish(c, 0, st)
}
