package target

import (
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

const (
	// keepAliveGranularity is KAS of Identify Controller, units of 100 ms: timeouts are rounded up
	// to it.
	keepAliveGranularity = 10
	// maxKeepAlive caps a timeout, in milliseconds: a day.
	maxKeepAlive = 24 * 3600 * 1000
	// discoveryActivity is the timeout of a discovery controller whose host asked for none (Base
	// section 3.1.3.3: two minutes).
	discoveryActivity = int64(120e9)
	// disabledKeepAlive is the least timeout while the controller is not enabled, when no Keep
	// Alive can be sent.
	disabledKeepAlive = int64(120e9)
	// keepAliveChecks is how often per period the timer looks for traffic.
	keepAliveChecks = 2
)

// roundKeepAlive makes a timeout in milliseconds one that we support; 0 stays off.
func roundKeepAlive(ms uint32) uint32 {
	const unit = keepAliveGranularity * 100
	return uint32(min((uint64(ms)+unit-1)/unit*unit, maxKeepAlive))
}

// keepAliveTimer watches the commands of all queues of a controller: with TBKAS any of them counts
// (Base section 3.9). Each queue counts its own commands, so that the queues share nothing.
type keepAliveTimer struct {
	period   int64 // nanoseconds; 0 is off
	seen     uint64
	lastSeen int64 // when traffic was last noticed
	lastLook int64
	stopped  bool
	cancel   func()
}

func (k *keepAliveTimer) stop() {
	k.stopped = true
	if k.cancel != nil {
		k.cancel()
		k.cancel = nil
	}
}

// startKeepAlive starts the timer with the timeout of the Connect command, in milliseconds.
func (c *controller) startKeepAlive(ms uint32) {
	c.features[nvme.FeatureKeepAliveTimer] = roundKeepAlive(ms)
	c.armKeepAlive()
}

// armKeepAlive starts the timer anew with the value of the feature.
func (c *controller) armKeepAlive() {
	k := &c.alive
	if k.stopped {
		return
	}
	if k.cancel != nil {
		k.cancel()
		k.cancel = nil
	}
	k.period = int64(c.features[nvme.FeatureKeepAliveTimer]) * 1e6
	if k.period == 0 && c.sub.discovery {
		k.period = discoveryActivity
	}
	if k.period == 0 {
		return
	}
	k.lastSeen = c.h.loop.Now()
	k.lastLook = k.lastSeen
	c.nextKeepAlive()
}

// nextKeepAlive has the timer look again, at a time that is the same for all controllers with this
// period: an idle target wakes up once for all of them.
func (c *controller) nextKeepAlive() {
	step := c.alive.period / keepAliveChecks
	c.alive.cancel = c.h.after(step-c.h.loop.Now()%step, c.checkKeepAlive)
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
	k.cancel = nil
	now := c.h.loop.Now()
	n := c.traffic()
	// Commands may wait unread if this process itself stood still: a look that comes late proves
	// nothing about the host.
	late := now-k.lastLook > k.period
	k.lastLook = now
	if n != k.seen || late {
		k.seen, k.lastSeen = n, now
	}
	limit := k.period
	if !c.ready.Load() {
		limit = max(limit, disabledKeepAlive)
	}
	if now-k.lastSeen >= limit {
		c.csts |= nvme.CSTSFatal
		c.h.warn("keep alive timer expired", "subsystem", c.sub.nqn, "cntlid", c.cntlid, "host",
			c.hostNQN,
			"timeout", time.Duration(limit))
		c.fail(fmt.Errorf("keep alive timer expired after %v", time.Duration(limit)))
		return
	}
	c.nextKeepAlive()
}

// keepAlive answers a Keep Alive command; that it came is what counts.
func keepAlive(h *Handler, c *cmd) {
	st := nvme.Success
	if c.s.ctrl.alive.period == 0 {
		st = nvme.KATOInvalid | nvme.DNR
	}
	h.finish(c, 0, st)
}
