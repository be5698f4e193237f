package tcp

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Data memory comes from the reactor's arena. When that is empty, commands wait in the order of
// their arrival, while capsules go on being taken out of the streams: data that has been asked for,
// and whose arrival frees memory again, may come behind them. Therefore the last part of the arena
// is kept for in-capsule data; if even that is used up, the connection is not read until something
// has been freed.

// wantMemory gives a prepared command memory for its data, now or later.
func (g *Group) wantMemory(r *request) {
	q := r.Queue.(*queue)
	if int64(r.Length) > int64(g.cfg.Memory.Max()) {
		r.Status = nvme.DataSGLLengthInvalid | nvme.DNR
		g.toReady(r)
		return
	}
	if g.waiting.head == nil && g.allocate(r) {
		q.start(r)
		return
	}
	r.state = requestWaiting
	r.since = g.loop.Now()
	g.waiting.push(r)
	g.startTick()
}

// allocate attaches Length bytes to the request.
func (g *Group) allocate(r *request) (ok bool) {
	if g.cfg.Memory.Available()-g.promised < int(r.Length) {
		return false
	}
	if r.own, ok = g.cfg.Memory.AllocReserve(r.own, int(r.Length)); ok {
		r.Segs = append(r.Segs, r.own...)
	}
	return ok
}

// room sees to it that there is memory for n bytes of in-capsule data. If they are there as a
// whole, it is taken only when they turn out to need it, which is known when the batch has been
// prepared, or if the command is prepared ahead of its data.
func (q *queue) room(r *request, n int, whole, ahead bool) bool {
	need := (n + mem.BlockMin - 1) &^ (mem.BlockMin - 1)
	switch {
	case !q.g.spare(need, ahead):
		return false
	case whole, ahead:
		q.g.promised += need
		return true
	}
	return q.own(r, n)
}

// spare says whether there are need bytes for in-capsule data. What is asked for ahead is as large
// as what others wait for, and leaves them their turn and the reserve to small data; but one such
// command may always have some, since what is waited for may come behind it.
func (g *Group) spare(need int, ahead bool) bool {
	left := g.cfg.Memory.Available() - g.promised - need // beyond the reserve
	return left >= -g.cfg.Memory.Reserve() &&
		(!ahead || g.ahead == 0 || g.waiting.head == nil && left >= 0)
}

// own makes r own n bytes.
func (q *queue) own(r *request, n int) (ok bool) {
	r.own, ok = q.g.cfg.Memory.AllocReserve(r.own, n)
	return ok
}

// stall stops reading until there may be n bytes of memory.
func (q *queue) stall(n int, ahead bool) {
	q.stalled, q.stallAhead = true, ahead
	q.stallNeed = (n + mem.BlockMin - 1) &^ (mem.BlockMin - 1)
	q.stalledBy = q.now() + q.g.t.cfg.MemoryTimeout.Nanoseconds()
	q.g.stalled = append(q.g.stalled, q)
	q.g.startTick()
}

// retryMemory goes on with what waits for memory, if there is some.
func (g *Group) retryMemory() int {
	work := 0
	for g.waiting.head != nil && g.allocate(g.waiting.head) {
		r := g.waiting.pop()
		r.Queue.(*queue).start(r)
		work++
	}
	work += g.execute()
	for n := len(g.stalled); n > 0 &&
		g.spare(g.stalled[0].stallNeed, g.stalled[0].stallAhead); n-- {
		q := g.stalled[0]
		g.stalled = append(g.stalled[:0], g.stalled[1:]...)
		by := q.stalledBy
		q.stalled, q.stalledBy = false, 0
		work += q.process(g.rx[:copy(g.rx, q.carry)])
		if q.stalled {
			q.stalledBy = by
		} else {
			q.drained = false
			g.heat(q)
		}
	}
	return work
}

// CanReceiveInto implements fabric.Queue: the kernel puts data wherever it belongs.
func (q *queue) CanReceiveInto([]mem.Segment) bool { return true }

// HandOverBuffers implements fabric.Queue.
func (q *queue) HandOverBuffers(fr *fabric.Request) (free func()) {
	r := fr.Owner.(*request)
	if r.ZeroCopy {
		return nil
	}
	q.g.leaveAhead(r)
	memory, own := q.g.cfg.Memory, r.own
	r.own, r.Segs = nil, nil
	return func() { memory.Free(own) }
}
