package rdma

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// getBuffers gets memory for the data of a request: prepared -> needRead, executing or needMemory.
func (q *queue) getBuffers(r *request) {
	if r.ZeroCopy {
		q.haveBuffers(r)
		return
	}
	pool := q.g.cfg.Memory
	if q.p.staging.pool != nil && r.Dir == fabric.HostToController {
		pool = q.p.staging.pool
	}
	n := int(r.Length)
	if n > pool.Max(r.Flow) {
		q.refuse(r, nvme.InternalError) // this amount is never free
		return
	}
	r.memory.Segs = r.Segs[:0]
	if pool.Alloc(&r.memory, r.Flow, n) {
		r.Segs = r.memory.Segs
		q.haveBuffers(r)
		return
	}
	r.state = requestNeedMemory
	pool.Wait(&r.memory, r.Flow, n, q.g.now())
	q.g.startTicks()
}

// Granted implements mem.WaitOwner. It may be called while another group on the reactor polls.
func (r *request) Granted() {
	r.countWait()
	r.Segs = r.memory.Segs
	r.Queue.(*queue).haveBuffers(r)
}

// Expired implements mem.WaitOwner. Hosts retry an interrupted command (Base figure 102).
func (r *request) Expired() {
	r.countWait()
	r.Queue.(*queue).refuse(r, nvme.CommandInterrupted)
}

// Resume implements fabric.Queue. The next poll continues.
func (q *queue) Resume(fr *fabric.Request) {
	fr.Deferred = false
	r := fr.Owner.(*request)
	r.countWait()
	q.prepared(r)
}

// countWait counts the waiting time of the command.
func (r *request) countWait() {
	r.Spent(fabric.StageWait, r.Queue.(*queue).g.cfg.Loop.Clock())
}

// haveBuffers continues with a request that has memory.
func (q *queue) haveBuffers(r *request) {
	if r.Dir == fabric.ControllerToHost {
		q.execute(r)
		return
	}
	r.state, r.since = requestNeedRead, q.g.now()
	r.rewind()
	q.toRead.Push(r, &r.node)
	q.schedule()
}

// postRead posts RDMA READs for the data of the first request of q.toRead, as many as the device
// and the host take now: needRead -> reading. It reports whether it posted any.
func (q *queue) postRead(r *request) bool {
	most := min(q.sqFree, q.maxChain, q.reads)
	if most == 0 {
		return false
	}
	q.toRead.Pop()
	r.wrs = q.addWRs(r, verbs.WRRDMARead, q.p.readSGE, most)
	q.signalLast(workRead, r)
	q.sqFree -= r.wrs
	q.reads -= r.wrs
	r.state = requestReading
	return true
}

// readDone handles the last posted READ: reading -> executing, or needRead for the rest.
func (q *queue) readDone(r *request) {
	if r.state != requestReading {
		return
	}
	q.sqFree += r.wrs
	q.reads += r.wrs
	r.wrs = 0
	q.scheduleIfWaiting()
	if r.data.Segment() != nil {
		r.state = requestNeedRead
		q.toRead.PushFirst(r, &r.node)
		q.schedule()
		return
	}
	r.Spent(fabric.StageHostData, q.g.reaped)
	q.execute(r)
}

// execute puts the request into the next batch for the handler: -> executing.
func (q *queue) execute(r *request) {
	r.state = requestExecuting
	q.executing++
	q.g.exec = append(q.g.exec, &r.Request)
}

// HandOverBuffers implements fabric.Queue. In-capsule data cannot be handed over: a receive slot is
// posted again with the response.
func (q *queue) HandOverBuffers(fr *fabric.Request) (free func()) {
	r := fr.Owner.(*request)
	switch {
	case r.ZeroCopy || len(r.memory.Segs) == 0 && len(r.Segs) > 0:
		return nil
	}
	r.Segs = nil
	return r.memory.HandOver()
}

// CanSendFrom implements fabric.Queue: every segment lies in memory that is registered with the
// device. Unregistered memory gets registered.
func (q *queue) CanSendFrom(segs []mem.Segment) bool {
	all := true
	for i := range segs {
		if _, ok := q.p.lkey(&segs[i]); !ok {
			all = false // look up the others, too, so that they get registered
		}
	}
	return all
}

// CanReceiveInto implements fabric.Queue. On iWARP data from the host is received into staging
// memory, because its destination is open to remote writes.
func (q *queue) CanReceiveInto(segs []mem.Segment) bool {
	return q.p.staging.pool == nil && q.CanSendFrom(segs)
}
