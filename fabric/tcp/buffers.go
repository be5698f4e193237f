package tcp

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Data memory comes from the reactor's pool. When that is empty, commands wait for it in order of
// arrival, while further capsules are received: the data of R2Ts may come after them, and its
// arrival frees memory again. In-capsule data blocks its stream while it waits. Therefore small
// in-capsule data may use the reserve of the pool, and large in-capsule data may while an R2T is
// outstanding on its connection. If the reserve is used up too, the queue is stalled: it is not
// read until there is memory.
//
// Memory is promised to small in-capsule data that has been received, because it may turn out to
// need it when its batch has been prepared. Until its own host is known, it counts for the host of
// the command before it.

// fromCapsule executes a command with its in-capsule data in the receive buffer. The data stays
// there if the device takes it during Execute. take is false if the command does not use the data.
func (q *queue) fromCapsule(r *request, take bool) {
	switch {
	case !take:
	case r.CompletesInExecute:
		r.Segs = append(r.Segs, mem.Segment{B: r.data[:r.Length:r.Length]})
		q.g.markReady(r)
		q.g.borrowed++ // after markReady, which may execute earlier ones
		return
	default:
		// The handler may have used the promised memory for other commands of the batch.
		if !q.g.cfg.Memory.AllocPromised(&r.memory, r.Flow, int(r.Length)) {
			r.Status = nvme.CommandInterrupted
			break
		}
		r.Segs = append(r.Segs, r.memory.Segs...)
		c := mem.NewCursor(r.Segs, 0)
		c.CopyFrom(r.data[:r.Length])
	}
	r.data = nil
	q.g.markReady(r)
}

// wantMemory gets memory for the data of a prepared command, now or later.
func (q *queue) wantMemory(r *request) {
	g, n := q.g, int(r.Length)
	pool := g.cfg.Memory
	urgent := r == q.cur && (!q.large || !q.grants.Empty())
	switch {
	case n > pool.Max(r.Flow):
		r.Status = nvme.DataSGLLengthInvalid | nvme.DNR
		q.start(r)
		return
	case urgent && pool.AllocReserve(&r.memory, r.Flow, n),
		!urgent && pool.Alloc(&r.memory, r.Flow, n):
		r.Segs = append(r.Segs, r.memory.Segs...)
		q.start(r)
		return
	}
	r.state = requestWaiting
	if r == q.cur {
		g.stalled++
	}
	if urgent {
		pool.WaitReserve(&r.memory, r.Flow, n, q.now())
	} else {
		pool.Wait(&r.memory, r.Flow, n, q.now())
	}
	g.startTick()
}

// stalled reports whether the queue is not read because in-capsule data waits for memory.
func (q *queue) stalled() bool { return q.cur != nil && q.cur.state == requestWaiting }

// start continues with a prepared command that needs no memory, or has it.
func (q *queue) start(r *request) {
	write := r.Status.OK() && r.Dir == fabric.HostToController && r.Length > 0
	switch {
	case r == q.cur: // its data follows; data of a refused command is discarded
		r.state = requestReceiving
		if write {
			q.dst = mem.NewCursor(r.Segs, 0)
		}
	case write:
		q.grant(r)
	default:
		q.g.markReady(r)
	}
}

// A transfer tag has the request's tag in the low bits and a count of its uses above, and is never
// 0 or FFFFh. So old tags are recognized.
const (
	ttagBits   = 10 // MaxQueueDepth = 1<<ttagBits
	ttagRounds = 1<<(16-ttagBits) - 2
)

// grant requests all the data of a command with one R2T. One is always within the host's MAXR2T,
// which counts from 1 (TCP section 3.6.2.2).
func (q *queue) grant(r *request) {
	r.round = r.round%ttagRounds + 1
	r.ttag = r.tag | r.round<<ttagBits
	r.state = requestGranting
	q.enqueue(r, sendR2T, pdu.DataSize+q.params.HeaderDigestSize())
	q.schedule()
}

// Granted implements mem.WaitOwner. Any group of the reactor may serve the pool, so the request
// only continues in the next poll of its own group.
func (r *request) Granted() {
	q := r.queue()
	q.g.resumed.Push(r, &r.node)
}

func (r *request) Expired() { r.Granted() }

// Resume implements fabric.Queue. As when memory is granted, the next poll continues.
func (q *queue) Resume(fr *fabric.Request) { fr.Owner.(*request).Granted() }

// cancelWait ends the wait of r, which may be over already.
func (g *Group) cancelWait(r *request) {
	r.memory.Cancel()
	if r.node.Listed() {
		g.resumed.Remove(&r.node)
	}
}

// resume continues with commands that no longer wait, and returns the number of steps made.
func (g *Group) resume() int {
	work := 0
	if g.cfg.Memory.CanServe() {
		g.cfg.Memory.Serve()
	}
	for work < resumeMost && g.inTurn <= pollBytes/2 && g.reader == nil { // otherwise rx is in use
		r := g.resumed.Pop()
		if r == nil {
			break
		}
		work += r.queue().resume(r)
	}
	return work + g.execute()
}

// resume continues with a command that the handler resumes, that now has memory, or that has waited
// too long for it.
func (q *queue) resume(r *request) int {
	g, inCapsule := q.g, r == q.cur
	now := g.loop.Clock()
	r.Spent(fabric.StageWait, now)
	switch {
	case q.state >= queueClosing:
		q.abandon(r)
		return 1
	case r.Deferred:
		r.Deferred = false
		q.prepared(r)
		return 1
	case len(r.memory.Segs) > 0:
		r.Segs = append(r.Segs, r.memory.Segs...)
	default: // hosts retry (Base section 4.2.3.1); in-capsule data is discarded
		r.Status = nvme.CommandInterrupted
	}
	q.start(r)
	if !inCapsule {
		return 1
	}
	g.stalled--
	g.activate(q)
	g.arrived = now // for its data and the bytes after it
	return q.process(g.rx[:copy(g.rx, q.partial)])
}

// CanReceiveInto implements fabric.Queue: the kernel writes to any memory.
func (q *queue) CanReceiveInto([]mem.Segment) bool { return true }

func (q *queue) HandOverBuffers(fr *fabric.Request) (free func()) {
	r := fr.Owner.(*request)
	if r.ZeroCopy {
		return nil
	}
	if r.data != nil {
		q.g.replaceBuffer()
	}
	r.Segs = nil
	return r.memory.HandOver()
}
