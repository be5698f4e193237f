package rdma

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// sendResponse posts the response to the first request of q.toSend, after the data if it goes to
// the host: needSend -> sending. If the data does not all fit into the send queue, part of it is
// written first: needSend -> writing. It returns false if nothing can be posted now.
func (q *queue) sendResponse(r *request) bool {
	most := min(q.sqFree, q.maxChain)
	if most == 0 || q.sends == 0 {
		return false
	}
	q.toSend.Pop()
	if r.sendsData() {
		r.wrs = q.addWRs(r, verbs.WRRDMAWrite, q.p.sendSGE, most)
	}
	if r.wrs == most { // no room for the response
		q.signalLast(workWrite, r)
		q.sqFree -= r.wrs
		r.state = requestWriting
		return true
	}
	q.addResponse(r)
	r.wrs++
	q.sqFree -= r.wrs
	q.sends--
	q.taken--
	r.state = requestSending
	q.freeSlot(r)
	return true
}

// addResponse adds the SEND of the response, or puts it aside until addResponses. It invalidates
// the host's key if the command asked for that.
func (q *queue) addResponse(r *request) {
	g := q.g
	off := q.slab.responses + int(r.tag)*responseSize
	copy(q.slab.region.Bytes()[off:off+responseSize], r.CQE[:])
	wr := verbs.SendWR{
		WRID: workID(workSend, q.id, r.tag), Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		FirstSGE: uint32(len(g.sges)), NumSGE: 1,
	}
	if r.invalidate && !q.p.dev.noInvalidate.Load() {
		wr.Opcode, wr.InvalidateRKey = verbs.WRSendWithInv, r.staleKey
	}
	if q.inline {
		wr.Flags |= verbs.SendInline
	}
	g.sges = append(g.sges, q.slab.sge(off, responseSize))
	if q.p.dev.attr.WritesFirst {
		q.p.responses = append(q.p.responses, wr)
	} else {
		g.wrs = append(g.wrs, wr)
	}
}

// writeDone handles the completion of RDMA WRITEs ahead of a response: writing -> needSend.
func (q *queue) writeDone(r *request) {
	if r.state != requestWriting {
		return
	}
	q.sqFree += r.wrs
	r.wrs = 0
	r.state = requestNeedSend
	q.toSend.PushFirst(r, &r.node)
	q.schedule()
}

// sent handles the completion of a response: sending -> idle. The next capsule may begin.
func (q *queue) sent(r *request) {
	if r.state != requestSending {
		return
	}
	q.sqFree += r.wrs
	q.sends++
	if r.invalidate {
		q.p.invalidateWorks = true
	}
	q.scheduleIfWaiting()
	if q.state < queueDraining {
		r.Spent(fabric.StageResponse, q.g.reaped)
		q.g.cfg.Handler.Sent(&r.Request)
	}
	q.freeRequest(r)
	if q.state < queueClosing {
		q.beginNext()
	}
}

// scheduleIfWaiting schedules the queue if a completion makes room for more, or lets it end.
func (q *queue) scheduleIfWaiting() {
	if !q.toRead.Empty() || !q.toSend.Empty() || q.state == queueClosing {
		q.schedule()
	}
}

// freeRequest makes a request idle that neither handler nor device uses, and frees its memory.
func (q *queue) freeRequest(r *request) {
	r.memory.Free()
	if r.ZeroCopy {
		q.g.cfg.Handler.EndZeroCopy(&r.Request)
	}
	q.freeSlot(r)
	r.Reset()
	r.state, r.wrs, r.invalidate = requestIdle, 0, false
	q.idle = append(q.idle, r)
}
