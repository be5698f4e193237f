package rdma

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// How much is gathered before it is posted. A part never takes more than maxPart work requests, so
// it fits.
const (
	batchWRs = 256
	maxPart  = 64
)

// flush posts what the queue's credits allow: responses with their data first, because they free
// what others wait for, then RDMA READs. It returns the number of work requests.
func (q *queue) flush() (n int) {
	g := q.g
	for r := q.out.head; r != nil && q.reply(r); r = q.out.head {
		if len(g.wrs) > batchWRs-maxPart {
			n += q.post()
		}
	}
	for r := q.needRead.head; r != nil && q.read(r); r = q.needRead.head {
		if len(g.wrs) > batchWRs-maxPart {
			n += q.post()
		}
	}
	if len(g.wrs) > 0 {
		n += q.post()
	}
	return n
}

// part is how many of n work requests go into the send queue together: all, if they leave half of
// it to others.
func (q *queue) part(n int) int { return min(n, max(q.sqSize/2, 1), maxPart) }

// reply takes the first request of q.out to the send queue: needSend -> sending, or writing if its
// data does not fit at once. False: the credits are used up.
func (q *queue) reply(r *request) bool {
	data := 0
	if r.sendsData() {
		data = q.pieces(r, q.p.sendSGE)
	}
	if need := data + 1; q.part(need) < need {
		return q.writePart(r, q.part(need))
	} else if q.slots < need || q.sends == 0 {
		return false
	}
	q.out.pop()
	if data > 0 {
		q.cut(r, verbs.WRRDMAWrite, q.p.sendSGE, data)
	}
	q.response(r)
	r.slots = data + 1
	q.slots -= r.slots
	q.sends--
	r.state = requestSending
	if q.shared != nil {
		q.taken--
		q.vacate(r)
		return true
	}
	q.g.recvs = append(q.g.recvs, q.recvWR(r.tag))
	return true
}

// writePart writes a part of the data of a request ahead of its response.
func (q *queue) writePart(r *request, n int) bool {
	if q.slots < n {
		return false
	}
	q.out.pop()
	r.slots = q.cut(r, verbs.WRRDMAWrite, q.p.sendSGE, n)
	q.signal(workWrite, r)
	q.slots -= r.slots
	r.state = requestWriting
	return true
}

// read starts to read the data of the first request of q.needRead: needRead -> reading.
func (q *queue) read(r *request) bool {
	n := min(q.part(q.pieces(r, q.p.readSGE)), q.slots, q.reads)
	if n == 0 {
		return false
	}
	q.needRead.pop()
	r.slots = q.cut(r, verbs.WRRDMARead, q.p.readSGE, n)
	q.signal(workRead, r)
	q.slots -= r.slots
	q.reads -= r.slots
	r.state = requestReading
	return true
}

// signal makes the last work request complete as what is given.
func (q *queue) signal(k workKind, r *request) {
	wr := &q.g.wrs[len(q.g.wrs)-1]
	wr.WRID = workID(k, q.gen, q.number, r.tag)
	wr.Flags |= verbs.SendSignaled
}

// response appends the SEND of the response. It invalidates the host's key if the command asked for
// it.
func (q *queue) response(r *request) {
	g := q.g
	off := q.responses + int(r.tag)*responseSize
	copy(q.region.Bytes()[off:off+responseSize], r.CQE[:])
	wr := verbs.SendWR{
		WRID: workID(workSend, q.gen, q.number, r.tag), Opcode: verbs.WRSend,
		Flags:    verbs.SendSignaled,
		FirstSGE: uint32(len(g.sges)), NumSGE: 1,
	}
	if r.invalidate && !q.p.dev.noInvalidate.Load() {
		wr.Opcode, wr.InvalidateRKey = verbs.WRSendWithInv, r.stale
	}
	if q.inline {
		wr.Flags |= verbs.SendInline
	}
	g.sges = append(g.sges,
		verbs.SGE{Addr: q.base + uint64(off), Length: responseSize, LKey: q.key})
	g.wrs = append(g.wrs, wr)
}

// post hands the gathered work requests to the device: receives first, because a response invites
// the host's next capsule.
func (q *queue) post() int {
	g := q.g
	n := len(g.wrs)
	if q.shared != nil {
		q.shared.refill()
	} else if err := q.postRecv(g.recvs); err != nil {
		q.fail(fmt.Errorf("post receives: %w", err))
	}
	if err := q.postSend(g.wrs); err != nil {
		q.fail(fmt.Errorf("post sends: %w", err))
	}
	g.wrs, g.sges, g.recvs = g.wrs[:0], g.sges[:0], g.recvs[:0]
	if q.signalled > 0 {
		g.watch()
	}
	return n
}

func (q *queue) postRecv(wrs []verbs.RecvWR) error {
	if len(wrs) == 0 {
		return nil
	}
	n, err := q.qp.PostRecv(wrs)
	q.posted += n
	return err
}

// postSend posts and counts what was posted. A device that does not take SEND_WITH_INV says so at
// the first one; from then on hosts invalidate their keys themselves, as they must be prepared to
// (RDMA section 3.6.1).
func (q *queue) postSend(wrs []verbs.SendWR) error {
	n, err := q.postCounted(wrs)
	if err == nil || n >= len(wrs) || wrs[n].Opcode != verbs.WRSendWithInv {
		return err
	}
	wrs = wrs[n:]
	for i := range wrs {
		if wrs[i].Opcode == verbs.WRSendWithInv {
			wrs[i].Opcode, wrs[i].InvalidateRKey = verbs.WRSend, 0
		}
	}
	if _, again := q.postCounted(wrs); again != nil {
		return err // that was not it
	}
	q.p.dev.noInvalidate.Store(true)
	return nil
}

func (q *queue) postCounted(wrs []verbs.SendWR) (int, error) {
	n, err := q.qp.PostSend(wrs, q.g.sges)
	for i := range wrs[:n] {
		if wrs[i].Flags&verbs.SendSignaled != 0 {
			q.signalled++
		}
	}
	return n, err
}

// pendingMemory says whether somebody who waits for memory could have it now.
func (p *pool) pendingMemory() bool {
	r := p.waiting.head
	return r != nil && p.memory.Available() >= int(r.Length)
}
