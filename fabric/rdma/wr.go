package rdma

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Work requests are collected in the group, at most batchWRs, and posted when a chain might not
// fit. A chain is the work requests that one request adds at a time, at most maxChain.
const (
	batchWRs = 256
	maxChain = 64
)

// rewind prepares the request to move its data from the first byte on.
func (r *request) rewind() {
	r.data, r.moved, r.blockUsed = mem.NewCursor(r.Segs, 0), 0, 0
}

// remote returns the host's memory for the next byte of data. room is the number of bytes that one
// work request may move, at least one if data is left.
func (r *request) remote() (addr uint64, key, room uint32) {
	if r.blocks == nil {
		return r.addr + uint64(r.moved), r.rkey, r.HostLength - r.moved
	}
	d := descriptor(r.blocks)
	for d.KeyedLength() == r.blockUsed {
		r.blocks, r.blockUsed = r.blocks[nvme.SGLDescriptorSize:], 0
		d = descriptor(r.blocks)
	}
	return d.Address() + uint64(r.blockUsed), d.Key(), d.KeyedLength() - r.blockUsed
}

// addWRs adds work requests that move the data of r, at most most of them with at most perWR
// elements each, and returns their number. Each moves contiguous memory of the host. None is
// signaled, unless the device needs signaled WRITEs: the caller signals the last one of the chain.
func (q *queue) addWRs(r *request, op verbs.SendOpcode, perWR, most int) (n int) {
	g := q.g
	id, flags := workID(workUnsignaled, q.id, r.tag), verbs.SendFlags(0)
	if op == verbs.WRRDMAWrite && q.p.signalWrites {
		id, flags = workID(workData, q.id, r.tag), verbs.SendSignaled
	}
	for s := r.data.Segment(); s != nil && n < most; n++ {
		addr, rkey, room := r.remote()
		first := len(g.sges)
		for s != nil && room > 0 && len(g.sges)-first < perWR {
			lkey, _ := q.p.lkey(s) // CanSendFrom has found it, or it is that of a pool
			b := r.data.Next(int(room))
			g.sges = append(g.sges,
				verbs.SGE{Addr: mem.Addr(b), Length: uint32(len(b)), LKey: lkey})
			room -= uint32(len(b))
			r.moved += uint32(len(b))
			r.blockUsed += uint32(len(b))
			s = r.data.Segment()
		}
		g.wrs = append(g.wrs, verbs.SendWR{
			WRID: id, RemoteAddr: addr, Opcode: op, Flags: flags,
			FirstSGE: uint32(first), NumSGE: uint32(len(g.sges) - first), RKey: rkey,
		})
	}
	return n
}

func (q *queue) signalLast(k workKind, r *request) {
	wr := &q.g.wrs[len(q.g.wrs)-1]
	wr.WRID = workID(k, q.id, r.tag)
	wr.Flags |= verbs.SendSignaled
}

// postIfFull posts if the next chain might not fit.
func (q *queue) postIfFull() int {
	if len(q.g.wrs)+len(q.p.responses) <= batchWRs-maxChain {
		return 0
	}
	q.addResponses()
	return q.post()
}

// addResponses adds the responses that were put aside. Their WRITEs are before them.
func (q *queue) addResponses() {
	q.g.wrs, q.p.responses = append(q.g.wrs, q.p.responses...), q.p.responses[:0]
}

// post passes the collected work requests to the device, receives first, because a response invites
// the host's next capsule. It returns the number of sends.
func (q *queue) post() int {
	g := q.g
	n := len(g.wrs)
	if n == 0 {
		return 0
	}
	q.postRecvs()
	if err := q.postSend(g.wrs); err != nil {
		q.fail(fmt.Errorf("post sends: %w", err))
	}
	g.wrs, g.sges = g.wrs[:0], g.sges[:0]
	if q.signaled > 0 {
		g.startTicks()
	}
	return n
}

func (q *queue) postRecvs() {
	if q.srq != nil {
		q.srq.refill()
	} else if err := q.own.refill(q.g.recvs); err != nil {
		q.fail(fmt.Errorf("post receives: %w", err))
	}
}

// postSend posts and counts work requests. A device without SEND_WITH_INV refuses the first one.
// From then on hosts invalidate their keys themselves, as they must be prepared to (RDMA section
// 3.6.1).
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
		return err // the refusal had another reason
	}
	q.p.dev.noInvalidate.Store(true)
	return nil
}

func (q *queue) postCounted(wrs []verbs.SendWR) (int, error) {
	n, err := q.qp.PostSend(wrs, q.g.sges)
	for i := range wrs[:n] {
		if wrs[i].Flags&verbs.SendSignaled != 0 {
			q.signaled++
		}
	}
	return n, err
}
