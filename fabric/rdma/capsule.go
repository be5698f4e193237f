package rdma

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// completed takes a completion of one of the group's queues.
func (g *group) completed(wc *verbs.WC) {
	if workKind(wc.WRID>>56) == workShared {
		g.arrived(wc)
		return
	}
	number, gen := uint16(wc.WRID>>16), uint32(wc.WRID>>32)&genMask
	if int(number) >= len(g.slots) {
		return
	}
	q := g.slots[number]
	if q == nil || q.gen != gen {
		return // of a queue that is gone
	}
	kind, tag := workKind(wc.WRID>>56), uint16(wc.WRID)
	switch kind {
	case workRecv:
		q.posted--
	case workRead, workWrite, workSend, workData:
		q.signalled--
		q.progress++
	}
	if wc.Status != verbs.WCSuccess {
		// What is flushed was not the cause: that may be the peer, or a completion further on in
		// this batch.
		if wc.Status != verbs.WCWRFlushErr {
			if wc.Status == verbs.WCLocQPOpErr {
				q.suspectInvalidate()
			}
			q.fail(fmt.Errorf("%v failed: %v (vendor error %#x)", kind, wc.Status, wc.VendorErr))
		} else if q.state < queueDying {
			q.fail(errFlushed)
		}
		q.drained()
		return
	}
	r := &q.reqs[tag]
	switch kind {
	case workRecv:
		q.received(r, wc.ByteLen)
	case workRead:
		q.readDone(r)
	case workWrite:
		q.writeDone(r)
	case workSend:
		q.sent(r)
	}
	if q.state >= queueDying {
		q.drained()
	}
}

// received takes a capsule that arrived in the slot of r.
func (q *queue) received(r *request, size uint32) {
	switch {
	case q.state >= queueClosing:
		return
	case size < capsuleSize: // the rest of the slot holds bytes of an earlier capsule
		q.fail(fmt.Errorf("capsule of %d bytes, a command has %d", size, capsuleSize))
	case r.state != requestIdle:
		r.waiting = size // its last response is still in flight
	default:
		q.begin(r, size)
	}
}

// begin makes a request of the capsule in the slot of r: idle -> prepared.
func (q *queue) begin(r *request, size uint32) {
	r.state, r.waiting = requestPrepared, 0
	r.Start = q.g.now()
	copy(r.SQE[:], q.capsule(r))
	q.describe(r, size-capsuleSize)
	if !r.InCapsule && r.blocks == nil {
		q.vacate(r)
	}
	q.g.prep = append(q.g.prep, &r.Request)
}

// route decides after Prepare what the command needs before Execute.
func (q *queue) route(r *request) {
	switch {
	case !r.Status.OK():
		r.Dir, r.Length = fabric.NoData, 0
		q.execute(r)
	case r.Dir == fabric.NoData || r.Length == 0:
		q.execute(r)
	case r.Length > r.HostLength:
		q.refuse(r, nvme.InternalError)
	// there is no place in the host's memory to write to
	case r.InCapsule && r.Dir == fabric.ControllerToHost:
		q.refuse(r, nvme.InvalidField|nvme.DNR)
	case r.InCapsule:
		q.useInCapsule(r)
		q.execute(r)
	default:
		q.supply(r)
	}
}

// refuse sends the command to the handler with an error.
func (q *queue) refuse(r *request, st nvme.Status) {
	r.Status, r.Dir, r.Length = st, fabric.NoData, 0
	q.execute(r)
}

// useInCapsule makes the in-capsule data the data of the command. Its start is page aligned, which
// backends may count on; a host that uses an offset pays for that.
func (q *queue) useInCapsule(r *request) {
	b := q.capsuleData(r)
	if off := int(r.addr); off != 0 {
		mem.Copy(b, b[off:off+int(r.Length)])
	}
	b = b[:r.Length]
	if r.ZeroCopy {
		mem.CopySegments(r.Segs, []mem.Segment{{B: b}})
		q.vacate(r)
		return
	}
	if q.shared != nil && q.shared.short() && q.moveAway(r, b) {
		return
	}
	r.Segs = append(r.Segs[:0], mem.Segment{B: b, Region: q.capsuleRegion(r)})
}

// moveAway copies in-capsule data to memory of its own, if there is some, so that the slot is free
// for the next capsule.
func (q *queue) moveAway(r *request, b []byte) bool {
	r.pool = q.g.pool
	if r.pool.waiting.head != nil || !r.allocate() {
		r.pool = nil
		return false
	}
	mem.CopySegments(r.Segs, []mem.Segment{{B: b}})
	q.vacate(r)
	return true
}

// execute puts the request into the batch that goes to the handler.
func (q *queue) execute(r *request) {
	r.state = requestExecuting
	q.executing++
	q.g.exec = append(q.g.exec, &r.Request)
}
