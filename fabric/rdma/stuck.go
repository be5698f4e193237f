package rdma

import "github.com/nvmf-target/nvmf-target/internal/mem"

// A host can hold up the data it is sent and the data read from it: it posts no receives, or its
// device answers slowly or not at all. Work requests in flight at one time must complete within
// SendTimeout, even if many later ones complete. When memory is short, a queue with requests that
// have waited for the host with memory for too long (mem.Pool.HoldLimit) ends, so that other
// requests get memory before their commands fail.

// tick ends or fails the requests and queues that have waited too long.
func (g *group) tick() {
	g.stopTicks = nil
	now, limit := g.now(), g.t.cfg.MemoryTimeout.Nanoseconds()
	waiting := false
	g.inPieces(g.queues.walk(func(q *queue) int {
		waiting = q.checkProgress(now) || waiting
		return 1
	}), func() {
		if waiting {
			g.startTicks()
		}
	})
	for _, p := range g.pools { // two at most
		g.inPieces(p.SearchHolders(now-limit/mem.HoldPart, func(s mem.Shortage) (
			func() int, func() bool,
		) {
			return g.searchStuck(p, s, now)
		}), func() {
			g.inPieces(p.Expire(now-limit), func() {
				if p.HasWaiters() {
					g.startTicks()
				}
			})
		})
	}
}

// searchStuck ends the queue with the request that has waited longest for its host while holding
// memory of the short pool. See mem.Pool.SearchHolders.
func (g *group) searchStuck(p *mem.Pool, s mem.Shortage, now int64) (look func() int,
	end func() bool,
) {
	var stuck *queue
	longest := int64(0)
	look = g.queues.walk(func(q *queue) int {
		if q.state >= queueDraining || q.failed {
			return 1
		}
		for i := range q.reqs {
			r := &q.reqs[i]
			if !r.waitsForHost() || now-r.since <= longest || !r.memory.Of(p) {
				continue
			}
			most := p.HoldLimit(r.Flow, s, g.t.cfg.MemoryTimeout.Nanoseconds())
			if most > 0 && now-r.since > most {
				stuck, longest = q, now-r.since
			}
		}
		return 1 + len(q.reqs)/8
	})
	return look, func() bool {
		if stuck != nil {
			stuck.fail(errHolds)
		}
		return stuck != nil
	}
}

// waitsForHost reports whether only the host decides when the request goes on.
func (r *request) waitsForHost() bool {
	switch r.state {
	case requestNeedRead, requestReading, requestNeedSend, requestWriting, requestSending:
		return true
	}
	return false
}

// checkProgress ends a queue with sends that do not complete. It reports whether any are in flight.
func (q *queue) checkProgress(now int64) bool {
	if q.state >= queueDraining {
		return false
	}
	switch {
	case q.signaled == 0:
		q.stuckAt = 0
	case q.stuckAt == 0 || q.progress >= q.progressMark:
		q.progressMark = q.progress + uint64(q.signaled)
		q.stuckAt = now + q.g.t.cfg.SendTimeout.Nanoseconds()
	case now >= q.stuckAt:
		q.suspectInvalidate()
		q.fail(errStuck)
	}
	return q.signaled > 0
}
