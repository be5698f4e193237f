package rdma

import "github.com/nvmf-target/nvmf-target/internal/mem"

// A host can hold up what it is sent and what is read from it: it posts no receives, or its device
// answers slowly or not at all. What is in flight at one time must complete within SendTimeout,
// however much completes meanwhile of what came later. When memory is short, a queue whose requests
// wait for the host with memory for too long (mem.Pool.HoldLimit) ends, so that those who wait for
// memory get it before their commands fail.

// tick ends or fails what has waited too long.
func (g *group) tick() {
	g.stopTicks = nil
	now, limit := g.now(), g.t.cfg.MemoryTimeout.Nanoseconds()
	waiting := false
	for _, p := range g.pools {
		before := now - limit/mem.HoldPart
		for s := range p.Shortages(before) {
			if g.endStuck(p, s, now) {
				break // the others may be served now
			}
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

// endStuck ends the queue whose request has waited longest for its host with memory of the pool
// that is short. False: there is none.
func (g *group) endStuck(p *mem.Pool, s mem.Shortage, now int64) bool {
	var stuck *queue
	longest := int64(0)
	for q := range g.queues.all() {
		if q.state >= queueDraining || q.failed {
			continue
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
	}
	if stuck != nil {
		stuck.fail(errHolds)
	}
	return stuck != nil
}

// waitsForHost reports whether it depends on the host alone when the request gives its memory back,
// or executes.
func (r *request) waitsForHost() bool {
	switch r.state {
	case requestNeedRead, requestReading, requestNeedSend, requestWriting, requestSending:
		return true
	}
	return false
}

// checkProgress ends a queue whose sends do not complete. It reports whether any are in flight.
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
