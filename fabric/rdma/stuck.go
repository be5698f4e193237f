package rdma

import "github.com/nvmf-target/nvmf-target/internal/mem"

// A host can hold up what it is sent and what is read from it: it posts no receives, or its device
// answers slowly or not at all. What is in flight at one time must complete within SendTimeout,
// however much completes meanwhile of what came later. When memory is short, a queue whose requests
// wait for the host with memory for a quarter of MemoryTimeout ends, so that those who wait for
// memory get it before their commands fail.

// stuckPart is that part of MemoryTimeout.
const stuckPart = 4

// tick ends or fails what has waited too long.
func (g *group) tick() {
	g.stopTicks = nil
	now, limit := g.now(), g.t.cfg.MemoryTimeout.Nanoseconds()
	waiting := false
	for _, p := range g.pools {
		if before := now - limit/stuckPart; p.Shortage(before) {
			g.endHolders(p, before)
		}
		p.Expire(now - limit)
		waiting = waiting || p.HasWaiters()
	}
	for q := range g.queues.all() {
		if q.checkProgress(now) {
			waiting = true
		}
	}
	if waiting {
		g.startTicks()
	}
}

// endHolders ends queues with a request that has memory of the pool and has waited for its host
// since before a time.
func (g *group) endHolders(p *mem.Pool, before int64) {
	for q := range g.queues.all() {
		for i := range q.reqs {
			if r := &q.reqs[i]; r.pool == p && r.waitsForHost() && r.since < before {
				q.fail(errHolds)
				break
			}
		}
	}
}

// waitsForHost says whether it depends on the host alone when the request gives its memory back,
// or executes.
func (r *request) waitsForHost() bool {
	switch r.state {
	case requestNeedRead, requestReading, requestNeedSend, requestWriting, requestSending:
		return true
	}
	return false
}

// checkProgress ends a queue whose sends do not complete. It says whether any are in flight.
func (q *queue) checkProgress(now int64) bool {
	if q.state >= queueDraining {
		return false
	}
	switch {
	case q.signaled == 0:
		q.stuckAt = 0
	case q.stuckAt == 0 || q.progress >= q.mark:
		q.mark = q.progress + uint64(q.signaled)
		q.stuckAt = now + q.g.t.cfg.SendTimeout.Nanoseconds()
	case now >= q.stuckAt:
		q.suspectInvalidate()
		q.fail(errStuck)
	}
	return q.signaled > 0
}
