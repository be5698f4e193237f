package tcp

import (
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// deadlines of one queue, in nanoseconds of the reactor's clock, 0 for none. A tick of the group
// compares them; it only runs while there is one. Nothing is timed per command.
type deadlines struct {
	handshakeBy int64 // ICReq complete, then Connect successful
	closeBy     int64 // the end of closing and lingering
	partialBy   int64 // the PDU that has begun must be complete
	partialPDU  uint64
	pdus        uint64 // complete headers so far: tells one incomplete PDU from the next
	stalledBy   int64  // memory for the next capsule
	grantBy     int64  // another R2T must have got all its data
	sendBy      int64  // the first sendMark bytes must have been sent
	sendMark    uint64
	queuedBytes uint64 // put on sendq so far
	sentBytes   uint64
}

// tickPeriod is a fraction of the shortest time limit.
func (c *Config) tickPeriod() int64 {
	least := min(c.ICReqTimeout, c.ConnectTimeout, c.DataTimeout, c.SendTimeout, c.MemoryTimeout,
		c.LingerTimeout, orderlyLinger)
	return min(max(least/8, 5*time.Millisecond), 250*time.Millisecond).Nanoseconds()
}

func sinceNanos(t time.Time) int64 { return time.Since(t).Nanoseconds() }

// startTick makes the group look at its deadlines.
func (g *Group) startTick() {
	if !g.ticking {
		g.ticking = true
		g.stopTick = g.loop.After(g.tick, g.onTick)
	}
}

// checkDeadlines ends what is overdue and goes on ticking while there is something to wait for.
func (g *Group) checkDeadlines() {
	g.ticking = false
	now := g.loop.Now()
	pending := false
	for _, q := range g.queues {
		if q.state == queueDead {
			continue
		}
		pending = q.checkDeadlines(now) || pending
	}
	if g.expireWaiting(now) || pending {
		g.startTick()
	}
}

// checkDeadlines kills the queue if it is overdue and reports whether it has deadlines.
func (q *queue) checkDeadlines(now int64) bool {
	c := &q.g.t.cfg
	overdue := func(by int64, format string, args ...any) bool {
		if by == 0 || now < by {
			return false
		}
		err := fmt.Errorf(format, args...)
		q.g.t.log.Warn("connection ended", "remote", q.conn.info.Remote, "local", q.conn.info.Local,
			"error", err)
		q.kill(err)
		return true
	}
	switch {
	case q.closeBy != 0 && now >= q.closeBy:
		q.kill(q.why)
		return false
	case q.state == queueConnecting &&
		overdue(q.handshakeBy, "no complete ICReq within %v", c.ICReqTimeout),
		overdue(q.handshakeBy, "no successful Connect within %v", c.ConnectTimeout),
		overdue(q.partialBy, "the rest of a PDU did not arrive within %v", c.DataTimeout),
		overdue(q.grantBy, "the data of an R2T did not arrive within %v", c.DataTimeout),
		overdue(q.stalledBy, "no memory for in-capsule data within %v", c.MemoryTimeout),
		overdue(q.sendBy, "the host did not read within %v", c.SendTimeout):
		return false
	}
	if q.blocked {
		q.standIn()
	}
	return q.closeBy|q.handshakeBy|q.partialBy|q.grantBy|q.stalledBy|q.sendBy != 0
}

// expireWaiting fails commands that waited too long for memory and reports whether some still wait.
func (g *Group) expireWaiting(now int64) bool {
	limit := g.t.cfg.MemoryTimeout.Nanoseconds()
	for g.waiting.head != nil && now-g.waiting.head.since >= limit {
		r := g.waiting.pop()
		// Hosts retry a command that was interrupted (Base section 4.2.3.1).
		r.Status = nvme.CommandInterrupted
		g.toReady(r)
	}
	g.execute()
	return g.waiting.head != nil
}

// waitProgress renews the deadline for the data of R2Ts.
func (q *queue) waitProgress() {
	q.grantBy = 0
	if q.grants.head != nil {
		q.grantBy = q.now() + q.g.t.cfg.DataTimeout.Nanoseconds()
		q.g.startTick()
	}
}

// waitPartial keeps the deadline for the PDU that is incomplete now.
func (q *queue) waitPartial() {
	switch {
	case q.rx == receiveHeader && len(q.carry) == 0, q.stalled:
		q.partialBy = 0
	case q.partialBy == 0 || q.partialPDU != q.pdus:
		q.partialPDU = q.pdus
		q.partialBy = q.now() + q.g.t.cfg.DataTimeout.Nanoseconds()
		q.g.startTick()
	}
}

// waitSend keeps the deadline for what is queued, after something was sent or could not be.
func (q *queue) waitSend() {
	switch {
	case !q.blocked:
		q.sendBy = 0
	case q.sendBy == 0 || q.sentBytes >= q.sendMark:
		q.sendMark = q.queuedBytes
		q.sendBy = q.now() + q.g.t.cfg.SendTimeout.Nanoseconds()
		q.g.startTick()
	}
}
