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
	// discoveryTimeout applies to a discovery controller if its host asked for no timeout (Base
	// section 3.1.3.3: two minutes).
	discoveryTimeout = int64(120e9)
	// keepAliveChecks is how often per period the timer looks for traffic.
	keepAliveChecks = 2
	// marginWindow is for how long, at least, the smallest margin of a controller is shown.
	marginWindow = int64(60e9)
)

// keepAliveTimer watches the commands of all queues of a controller: with TBKAS any of them counts
// (Base section 3.9). Each queue counts its own commands, so that the queues share nothing.
type keepAliveTimer struct {
	period    int64 // nanoseconds; 0 is off
	seen      uint64
	lastSeen  int64 // when traffic was last noticed
	lastCheck int64
	stopped   bool
	timer     timer
	keepAliveMargin
}

// keepAliveMargin is how near a host came to its timeout. It ends nothing.
type keepAliveMargin struct {
	heardAt int64  // when the host was heard, or a check noticed that it had been
	heard   uint64 // commands until then
	// The longest silences that began in the marginWindow of windowAt, and in the one before it.
	silence  [2]int64
	windowAt int64
}

// hear notes that the host has sent n commands until now, after it was silent for so long.
func (m *keepAliveMargin) hear(now int64, n uint64, silent int64) {
	if now-m.windowAt >= marginWindow {
		m.silence, m.windowAt = [2]int64{0, m.silence[0]}, now
	}
	m.silence[0] = max(m.silence[0], silent)
	m.heardAt, m.heard = now, n
}

// margin is the smallest part of the timeout that was left in the last one or two minutes. Admin
// reactor.
func (c *controller) margin() time.Duration {
	k := &c.alive
	silent := max(k.silence[0], k.silence[1])
	if c.ready.Load() && c.traffic() == k.heard {
		silent = max(silent, c.h.loop.Now()-k.heardAt)
	}
	return time.Duration(max(k.period-silent, 0))
}

func (k *keepAliveTimer) stop() {
	k.stopped = true
	k.timer.stop()
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
	k.timer.stop()
	k.period = int64(ms) * 1e6
	if k.period == 0 && c.sub.discovery {
		k.period = discoveryTimeout
	}
	if k.period > 0 {
		k.lastSeen = c.h.loop.Now()
		k.lastCheck = k.lastSeen
		k.keepAliveMargin = keepAliveMargin{
			heardAt: k.lastSeen, heard: c.traffic(), windowAt: k.lastSeen,
		}
		c.startKeepAlive()
	}
	return ms
}

// startKeepAlive sets the timer for the next check, at a time that is the same for all controllers
// with this period: an idle target wakes up once for all of them.
func (c *controller) startKeepAlive() {
	step := c.alive.period / keepAliveChecks
	c.alive.timer.set(c.h, step-c.h.loop.Now()%step, c.checkKeepAlive)
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
	now := c.h.loop.Now()
	n := c.traffic()
	// If this process itself stood still, commands may wait unread: a check that comes late proves
	// nothing about the host.
	late := now-k.lastCheck > k.period
	switch {
	case late || !c.ready.Load():
		k.hear(now, n, 0)
	case n != k.heard: // silent until the last check, at least
		k.hear(now, n, k.lastCheck-k.heardAt)
	}
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
	k, now := &c.s.ctrl.alive, h.loop.Now()
	if n := c.s.ctrl.traffic(); n == k.heard+1 { // it has sent nothing else
		k.hear(now, n, now-k.heardAt)
	}
	if k.period == 0 {
		st = nvme.KATOInvalid | nvme.DNR
	}
	h.finish(c, 0, st)
}
