package tcp

import (
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
)

// orderlyLinger is the longest time that a connection stays open after an end without fault.
const orderlyLinger = time.Second

// deadlines are the deadlines of one queue, in nanoseconds of the reactor's clock, 0 for none. A
// tick of the group checks them while there are any. Commands have no timers.
type deadlines struct {
	handshakeBy int64 // ICReq complete, then Connect successful
	closeBy     int64 // the end of closing and lingering
	partialBy   int64 // the PDU in progress must be complete
	partialPDU  uint64
	pdus        uint64 // complete headers so far: distinguishes incomplete PDUs
	sendBy      int64  // the first sendMark bytes must have been sent
	sendMark    uint64
	queuedBytes uint64 // put on sendq so far
	sentBytes   uint64

	receivedBytes uint64
	requested     int   // data bytes of R2Ts that are not complete
	progressAt    int64 // when a tick saw sent and received bytes reach progressMark
	progressMark  uint64
}

// tickPeriod is a fraction of the shortest time limit.
func (c *Config) tickPeriod() int64 {
	least := min(c.ICReqTimeout, c.ConnectTimeout, c.DataTimeout, c.SendTimeout, c.MemoryTimeout,
		c.LingerTimeout, orderlyLinger)
	return min(max(least/8, 5*time.Millisecond), 250*time.Millisecond).Nanoseconds()
}

// startTick makes the group check its deadlines.
func (g *Group) startTick() {
	g.ticks = true
	if !g.ticking {
		g.ticking = true
		g.stopTick = g.loop.After(g.tick, g.onTick)
	}
}

// checkDeadlines ends queues that timed out, in pieces, and ticks while others may.
func (g *Group) checkDeadlines() {
	g.ticks = false
	now, pool, limit := g.loop.Now(), g.cfg.Memory, g.t.cfg.MemoryTimeout.Nanoseconds()
	g.inPieces(g.queues.Walk(func(q *queue) int {
		if q.state == queueDead {
			return 1
		}
		if q.checkDeadlines(now) {
			g.ticks = true
		}
		return q.checkSteps()
	}), func() {
		g.inPieces(pool.SearchHolders(now-limit/mem.HoldPart, func(s mem.Shortage) (
			func() int, func() bool,
		) {
			return g.searchStuck(s, now)
		}), func() {
			g.inPieces(pool.Expire(now-limit+1), func() {
				g.ticking = false
				if g.epfd >= 0 && (g.ticks || pool.HasWaiters()) {
					g.startTick()
				}
			})
		})
	})
}

// checkSteps returns the number of steps that checking the queue and its requests counts as, or its
// end.
func (q *queue) checkSteps() int {
	if q.state == queueDead {
		return 16
	}
	return 1 + len(q.reqs)/8
}

// checkDeadlines kills the queue if it has timed out and reports whether it has deadlines.
func (q *queue) checkDeadlines(now int64) bool {
	c := &q.g.t.cfg
	passed := func(by int64) bool { return by != 0 && now >= by }
	switch {
	case passed(q.closeBy):
		q.kill(q.reason)
	case passed(q.handshakeBy) && q.state == queueConnecting:
		q.timedOut("no complete ICReq within %v", c.ICReqTimeout)
	case passed(q.handshakeBy):
		q.timedOut("no successful Connect within %v", c.ConnectTimeout)
	case passed(q.partialBy):
		q.timedOut("the rest of a PDU did not arrive within %v", c.DataTimeout)
	case passed(q.grantBy()):
		q.timedOut("the data of an R2T did not arrive within %v", c.DataTimeout)
	case passed(q.sendBy):
		q.timedOut("the host did not read within %v", c.SendTimeout)
	case q.blocked && !q.copyUnsent():
		q.timedOut("the host did not read within %v the data that a writer waits for",
			time.Duration(writerWait))
	case q.holdsUpChange():
		q.timedOut("the host did not send within %v the data that a change of the namespace "+
			"waits for", time.Duration(changeWait))
	default:
		q.recordProgress(now)
		return q.closeBy|q.handshakeBy|q.partialBy|q.grantBy()|q.sendBy != 0
	}
	return false
}

// changeWait is about the time that a change of a namespace waits for the data of a zero-copy
// write, in nanoseconds, even if the host sends some of it in that time.
const changeWait = int64(10e9)

// holdsUpChange reports whether a change of the namespace has waited too long for a zero-copy
// write, because the host does not take the R2T or does not send its data.
func (q *queue) holdsUpChange() bool {
	for _, waiting := range [...]*list.List[request]{&q.grants, &q.sendq} {
		for r := range waiting.All() {
			if !r.ZeroCopy || r.Dir != fabric.HostToController || r.state > requestReceiving ||
				!q.g.cfg.Handler.WriterWaits(&r.Request) {
				continue
			}
			if r.unsent++; int64(r.unsent)*q.g.tick >= changeWait {
				return true
			}
		}
	}
	return false
}

// peerLog returns the log for events caused by the host of this connection.
func (q *queue) peerLog() ratelog.Peer { return q.g.t.log.Peer(q.conn.info.Remote) }

// timedOut ends the connection after limit; the format describes the missed event.
func (q *queue) timedOut(format string, limit time.Duration) {
	q.end(fmt.Errorf(format, limit))
}

// end ends the connection at once, with a line in the log. Not from within a call of the handler.
func (q *queue) end(reason error) {
	if q.state != queueDead {
		q.peerLog().Report(event.ConnectionEnded, "local", q.conn.info.Local, "err", reason)
		q.kill(reason)
	}
}

// grantBy returns the deadline for data of the R2T that has waited longest, 0 without one.
func (q *queue) grantBy() int64 {
	if r := q.grants.First(); r != nil {
		return r.dataBy
	}
	return 0
}

// grantRate is the minimum rate of data for R2Ts, in bytes per second. The time for all requested
// data at this rate is added to DataTimeout.
const grantRate = 1 << 20

// waitData puts r last among the requests that wait for the data of their R2T.
func (q *queue) waitData(r *request) {
	r.asked = q.now()
	r.dataBy = r.asked + q.g.t.cfg.DataTimeout.Nanoseconds() +
		int64(q.requested)*int64(time.Second)/grantRate
	q.grants.Push(r, &r.node)
	q.g.startTick()
}

// searchStuck finds the connection that has waited longest for its host with memory of the short
// pool, and ends it: otherwise commands waiting for memory would fail first. See
// mem.Pool.SearchHolders.
func (g *Group) searchStuck(s mem.Shortage, now int64) (look func() int, end func() bool) {
	var stuck *queue
	longest := int64(0)
	look = g.queues.Walk(func(q *queue) int {
		since := q.waitsSince()
		if since == 0 || now-since <= longest || q.held(s) == 0 {
			return q.checkSteps()
		}
		most := g.cfg.Memory.HoldLimit(q.flow, s, g.t.cfg.MemoryTimeout.Nanoseconds())
		if most > 0 && now-since > most {
			stuck, longest = q, now-since
		}
		return q.checkSteps()
	})
	return look, func() bool {
		if stuck != nil {
			stuck.timedOut("memory is scarce, and the host has not moved on for %v",
				time.Duration(longest).Round(time.Second/10))
		}
		return stuck != nil
	}
}

// waitsSince returns the time since when the queue has waited, without progress, for the host to
// read, or to send the rest of a PDU or the data of an R2T; 0 if it does not wait.
func (q *queue) waitsSince() (since int64) {
	if q.state > queueLive {
		return 0
	}
	data, send := q.g.t.cfg.DataTimeout.Nanoseconds(), q.g.t.cfg.SendTimeout.Nanoseconds()
	asked := int64(0)
	if r := q.grants.First(); r != nil {
		asked = r.asked
	}
	for _, t := range [...]int64{q.partialBy - data, asked, q.sendBy - send} {
		if t > 0 && (since == 0 || t < since) {
			since = t
		}
	}
	if since > 0 {
		since = max(since, q.progressAt)
	}
	return since
}

// recordProgress records whether the host makes progress. Within 1/HoldPart of MemoryTimeout it
// must move the same fraction of the memory that its connection holds, so that waiting commands get
// memory in time.
func (q *queue) recordProgress(now int64) {
	moved := q.sentBytes + q.receivedBytes
	switch {
	case q.progressMark == 0:
	case moved < q.progressMark:
		return
	default:
		q.progressAt = now
	}
	q.progressMark = moved + uint64(max(q.held(mem.Shortage{})/mem.HoldPart, 1))
}

// held returns the bytes of data memory of the queue that would end a shortage.
func (q *queue) held(s mem.Shortage) (n int) {
	for _, r := range q.reqs {
		if s.Needs(r.Flow) {
			n += mem.Length(r.memory.Segs)
		}
	}
	return n
}

// waitPartial sets, renews or clears the deadline for the PDU that is incomplete now.
func (q *queue) waitPartial() {
	switch {
	case q.rx == receiveHeader && len(q.partial) == 0, q.stalled():
		q.partialBy = 0
	case q.partialBy == 0 || q.partialPDU != q.pdus:
		q.partialPDU = q.pdus
		q.partialBy = q.now() + q.g.t.cfg.DataTimeout.Nanoseconds()
		q.g.startTick()
	}
}

// waitSend sets, renews or clears the deadline for queued data, after an attempt to send.
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
