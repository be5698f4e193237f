package rdma

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// received handles the completion of a receive: the capsule gets a request, or waits for one.
func (q *queue) received(slot uint16, size uint32) {
	switch {
	case q.state >= queueClosing:
	// The rest of the slot holds bytes of an earlier capsule; an SRQ has room for more.
	case int(size) < capsuleSize || int(size) > capsuleSize+q.icd:
		q.fail(fmt.Errorf("capsule of %d bytes, a command has %d and at most %d of data", size,
			capsuleSize, q.icd))
	case q.taken == q.conn.depth: // with an SRQ, the receives do not enforce it
		q.fail(fmt.Errorf("more commands than the queue's depth, %d", q.conn.depth))
	case len(q.idle) == 0 && q.overShare(q.slots+1):
		q.fail(errShare)
	default:
		q.taken++
		q.slots++
		q.capsules = append(q.capsules, capsule{slot, size})
		q.beginNext()
		return
	}
	q.recv.free = append(q.recv.free, slot)
}

// beginNext begins the oldest capsules. Capsules beyond the queue's turn wait for the next poll,
// and capsules without a request wait for the completion of a response.
func (q *queue) beginNext() {
	n := 0
	for ; n < len(q.capsules) && len(q.idle) > 0 && q.hasTurn(); n++ {
		q.begin(q.capsules[n].slot, q.capsules[n].size)
	}
	q.capsules = q.capsules[:copy(q.capsules, q.capsules[n:])]
	if len(q.capsules) > 0 && len(q.idle) > 0 && !q.waits.Listed() {
		q.g.waiting.Push(q, &q.waits)
	}
}

// begin assigns an idle request to the capsule in a slot: idle -> prepared.
func (q *queue) begin(slot uint16, size uint32) {
	r := q.idle[len(q.idle)-1]
	q.idle = q.idle[:len(q.idle)-1]
	r.state, r.slot, r.hasSlot, r.Session = requestPrepared, slot, true, q.session
	r.Start = q.g.reaped
	q.g.mayBegin--
	copy(r.SQE[:], q.recv.capsule(slot))
	q.parseSGL(r, size-capsuleSize)
	q.turn -= max(int(r.HostLength), turnBytes/turnCommands)
	if r.blocks != nil && q.overShare(q.slots) {
		r.blocks, r.Status = nil, nvme.CommandInterrupted
	}
	if q.srq != nil && !r.InCapsule && r.blocks == nil {
		q.freeSlot(r)
	}
	q.g.prep = append(q.g.prep, &r.Request)
}

// freeSlot frees the receive slot of a request, which is no longer needed.
func (q *queue) freeSlot(r *request) {
	if r.hasSlot {
		r.hasSlot = false
		q.slots--
		q.recv.free = append(q.recv.free, r.slot)
	}
}

// maxBlocks is the largest number of keyed data blocks of a command, announced as MSDBD.
const maxBlocks = 16

// msdbd is the number of keyed data blocks that fit into a capsule.
func msdbd(inCapsule int) int {
	return max(min(maxBlocks, inCapsule/nvme.SGLDescriptorSize), 1)
}

// parseSGL parses the SGL descriptor of the command (RDMA section 3.3.1: a data block with an
// offset into the capsule, a keyed data block, or a last segment with the offset of a list of keyed
// data blocks in the capsule; everything else is refused). inCapsule is the number of bytes
// received after the SQE.
func (q *queue) parseSGL(r *request, inCapsule uint32) {
	d := r.SQE.SGL1()
	r.invalidate, r.blocks = false, nil
	switch typ, sub := d.Type(), d.Subtype(); {
	case typ == nvme.SGLKeyedDataBlock &&
		(sub == nvme.SGLSubtypeAddress || sub == nvme.SGLSubtypeInvalidate):
		r.HostLength, r.addr, r.rkey = d.KeyedLength(), d.Address(), d.Key()
		// RDMA section 3.6.1: the host asks to have exactly this key invalidated.
		r.invalidate, r.staleKey = sub == nvme.SGLSubtypeInvalidate && r.HostLength > 0, r.rkey
	case typ == nvme.SGLDataBlock && sub == nvme.SGLSubtypeOffset:
		r.Status = q.parseOffset(r, d, inCapsule)
	case typ == nvme.SGLLastSegment && sub == nvme.SGLSubtypeOffset:
		r.Status = q.parseList(r, d, inCapsule)
	case typ == nvme.SGLDataBlock && sub == nvme.SGLSubtypeAddress && d.Length() == 0:
		// There is no data: some hosts leave the descriptor of such commands zero.
	default:
		r.Status = nvme.SGLTypeInvalid | nvme.DNR
	}
}

// parseOffset checks an offset data block. ICDOFF is 0: offsets count from the end of the SQE.
func (q *queue) parseOffset(r *request, d *nvme.SGLDescriptor, inCapsule uint32) nvme.Status {
	off, n := d.Address(), d.Length()
	switch {
	// Base section 4.3.2, SGL Offset Invalid: beyond the end of the capsule
	case off > uint64(q.icd):
		return nvme.SGLOffsetInvalid | nvme.DNR
	case uint64(n) > uint64(q.icd)-off, off+uint64(n) > uint64(inCapsule):
		return nvme.DataSGLLengthInvalid | nvme.DNR
	}
	r.HostLength, r.InCapsule = n, n > 0
	r.addr = off
	return nvme.Success
}

// parseList checks a last segment and its descriptors. They stay in the receive slot, which is
// posted again only just before the response. The statuses follow Base figure 102.
func (q *queue) parseList(r *request, d *nvme.SGLDescriptor, inCapsule uint32) nvme.Status {
	off, n := d.Address(), d.Length()
	switch {
	case off > uint64(q.icd):
		return nvme.SGLOffsetInvalid | nvme.DNR
	case n == 0, n%nvme.SGLDescriptorSize != 0, off+uint64(n) > uint64(inCapsule):
		return nvme.InvalidSGLSegment | nvme.DNR
	case n > maxBlocks*nvme.SGLDescriptorSize:
		return nvme.InvalidSGLCount | nvme.DNR
	}
	blocks := q.recv.capsuleData(r.slot).B[off : off+uint64(n)]
	total, invalidate, stale := uint32(0), false, uint32(0)
	for i := 0; i < len(blocks); i += nvme.SGLDescriptorSize {
		b := descriptor(blocks[i:])
		switch typ, sub := b.Type(), b.Subtype(); {
		case typ == nvme.SGLKeyedDataBlock && sub == nvme.SGLSubtypeAddress:
		case typ == nvme.SGLKeyedDataBlock && sub == nvme.SGLSubtypeInvalidate:
			invalidate, stale = true, b.Key() // a response invalidates one key; hosts check it
		case typ == nvme.SGLSegment, typ == nvme.SGLLastSegment:
			return nvme.InvalidSGLSegment | nvme.DNR
		default:
			return nvme.SGLTypeInvalid | nvme.DNR
		}
		total += b.KeyedLength()
	}
	r.HostLength, r.blocks = total, blocks
	r.invalidate, r.staleKey = invalidate && total > 0, stale
	return nvme.Success
}

func descriptor(b []byte) *nvme.SGLDescriptor {
	return (*nvme.SGLDescriptor)(b[:nvme.SGLDescriptorSize])
}

// prepared decides, after Handler.Prepare, which step the command needs before Execute.
func (q *queue) prepared(r *request) {
	if r.Deferred && !r.InCapsule {
		r.state = requestNeedMemory
		return
	}
	r.Deferred = false
	switch {
	case !r.Status.OK():
		q.refuse(r, r.Status)
	case r.Dir == fabric.NoData || r.Length == 0:
		q.execute(r)
	case r.Length > r.HostLength:
		q.refuse(r, nvme.InternalError)
	case !r.InCapsule:
		q.getBuffers(r)
	case r.Dir == fabric.ControllerToHost: // the host has no memory to write to
		q.refuse(r, nvme.InvalidField|nvme.DNR)
	default:
		q.useInCapsule(r)
	}
}

// refuse passes the command to the handler with an error.
func (q *queue) refuse(r *request, st nvme.Status) {
	r.Status, r.Dir, r.Length = st, fabric.NoData, 0
	q.execute(r)
}

// useInCapsule makes the in-capsule data the data of the command, and executes or refuses it.
// Backends rely on the page alignment of its start: data at an offset is moved there.
func (q *queue) useInCapsule(r *request) {
	s := q.recv.capsuleData(r.slot)
	if off := int(r.addr); off != 0 {
		mem.Copy(s.B, s.B[off:off+int(r.Length)])
	}
	s.B = s.B[:r.Length]
	r.Segs = append(r.Segs[:0], s)
	if q.srq == nil || !q.srq.short() {
		q.execute(r)
		return
	}
	// Copy the data, if there is memory, to free the slot for the next capsule.
	switch {
	case q.g.cfg.Memory.Alloc(&r.memory, r.Flow, int(r.Length)):
		mem.CopySegments(r.memory.Segs, []mem.Segment{s})
		r.Segs = append(r.Segs[:0], r.memory.Segs...)
		q.freeSlot(r)
	case q.overShare(q.slots):
		r.Segs = r.Segs[:0]
		q.freeSlot(r)
		q.refuse(r, nvme.CommandInterrupted) // hosts retry it (Base figure 102)
		return
	}
	q.execute(r)
}
