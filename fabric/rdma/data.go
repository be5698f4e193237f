package rdma

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// supply gives a prepared request memory to move data through: prepared -> needRead or executing,
// or needMemory.
func (q *queue) supply(r *request) {
	if r.ZeroCopy {
		q.supplied(r)
		return
	}
	p := q.g.pool
	if q.p.staging != nil && r.Dir == fabric.HostToController {
		p = q.p.staging
	}
	if int(r.Length) > p.memory.Max() {
		q.refuse(r, nvme.InternalError) // it would wait for ever
		return
	}
	r.pool = p
	if p.waiting.head == nil && r.allocate() {
		q.supplied(r)
		return
	}
	r.state, r.since = requestNeedMemory, q.g.now()
	p.waiting.push(r)
	q.g.watch()
}

// allocate takes the request's memory from its pool.
func (r *request) allocate() (ok bool) {
	if r.pool.memory.Available() < int(r.Length) {
		return false
	}
	r.Segs, ok = r.pool.memory.AllocReserve(r.Segs[:0], int(r.Length))
	return ok
}

// supplied goes on with a request that has memory.
func (q *queue) supplied(r *request) {
	if r.Dir == fabric.ControllerToHost {
		q.execute(r)
		return
	}
	r.state, r.at = requestNeedRead, cursor{}
	q.needRead.push(r)
	q.touch()
}

// serve gives memory to those who wait for it, first come first served. It returns how many got
// some.
func (p *pool) serve() (n int) {
	for r := p.waiting.head; r != nil && r.allocate(); r = p.waiting.head {
		p.waiting.pop()
		r.Queue.(*queue).supplied(r)
		n++
	}
	return n
}

// expire fails those who have waited since before a moment: hosts retry a command that was
// interrupted (Base figure 102).
func (p *pool) expire(before int64) {
	for r := p.waiting.head; r != nil && r.since < before; r = p.waiting.head {
		p.waiting.pop()
		r.Queue.(*queue).refuse(r, nvme.CommandInterrupted)
	}
}

// cut appends work requests that move data of r on, at most most of them with at most perWR
// elements each, and returns how many. Unless the device wants WRITEs signalled, all but the last
// one of the whole chain are not; the caller signals that one.
func (q *queue) cut(r *request, op verbs.SendOpcode, perWR, most int) (n int) {
	for ; n < most && r.at.segment < len(r.Segs); n++ {
		wr := q.gather(r, op, perWR)
		if op == verbs.WRRDMAWrite && q.p.signalWrites {
			wr.WRID, wr.Flags = workID(workData, q.gen, q.number, r.tag), verbs.SendSignaled
		}
		q.g.wrs = append(q.g.wrs, wr)
	}
	return n
}

// readDone takes the completion of a part's last RDMA READ: reading -> executing, or needRead for
// the next part.
func (q *queue) readDone(r *request) {
	if r.state != requestReading {
		return
	}
	q.slots += r.slots
	q.reads += r.slots
	r.slots = 0
	if q.needRead.head != nil || q.out.head != nil {
		q.touch()
	}
	if r.at.segment < len(r.Segs) {
		r.state = requestNeedRead
		q.needRead.unpop(r)
		q.touch()
		return
	}
	q.execute(r)
}

// writeDone takes the completion of a part's last RDMA WRITE: writing -> needSend for the rest.
func (q *queue) writeDone(r *request) {
	if r.state != requestWriting {
		return
	}
	q.slots += r.slots
	r.slots = 0
	r.state = requestNeedSend
	q.out.unpop(r)
	q.touch()
}

// sent takes the completion of a response: sending -> idle, and at once prepared if the next
// capsule is there.
func (q *queue) sent(r *request) {
	if r.state != requestSending {
		return
	}
	q.slots += r.slots
	q.sends++
	if r.invalidate {
		q.p.invalidates = true
	}
	if q.needRead.head != nil || q.out.head != nil || q.state == queueClosing {
		q.touch()
	}
	waiting := r.waiting
	q.drop(r)
	if q.shared != nil {
		q.rest(r)
		return
	}
	if waiting > 0 && q.state < queueClosing {
		q.begin(r, waiting)
	}
}

// drop makes a request idle that neither the handler nor the device has any more: its memory goes
// back to its owner.
func (q *queue) drop(r *request) {
	if r.pool != nil {
		r.pool.memory.Free(r.Segs)
		r.pool = nil
	}
	if r.ZeroCopy {
		q.g.cfg.Handler.EndZeroCopy(&r.Request)
	}
	q.vacate(r)
	r.Reset()
	r.state, r.waiting, r.slots, r.invalidate = requestIdle, 0, 0, false
}
