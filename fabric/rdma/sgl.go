package rdma

import (
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// maxBlocks is the largest number of keyed data blocks of a command, announced as MSDBD.
const maxBlocks = 16

// msdbd is what fits into capsules with so much in-capsule data.
func msdbd(inCapsule int) int {
	return max(min(maxBlocks, inCapsule/nvme.SGLDescriptorSize), 1)
}

// describe reads the SGL descriptor of the command (RDMA section 3.3.1: a data block with an offset
// into the capsule, a keyed data block, or a last segment with the offset of a list of keyed data
// blocks in the capsule; everything else is refused). inCapsule is the number of bytes that came
// behind the SQE.
func (q *queue) describe(r *request, inCapsule uint32) {
	d := r.SQE.SGL1()
	r.invalidate, r.blocks = false, nil
	switch typ, sub := d.Type(), d.Subtype(); {
	case typ == nvme.SGLKeyedDataBlock &&
		(sub == nvme.SGLSubtypeAddress || sub == nvme.SGLSubtypeInvalidate):
		r.HostLength, r.addr, r.rkey = d.KeyedLength(), d.Address(), d.Key()
		// RDMA section 3.6.1: the host asks to have exactly this key invalidated.
		r.invalidate, r.stale = sub == nvme.SGLSubtypeInvalidate && r.HostLength > 0, r.rkey
	case typ == nvme.SGLDataBlock && sub == nvme.SGLSubtypeOffset:
		r.Status = q.describeInCapsule(r, d, inCapsule)
	case typ == nvme.SGLLastSegment && sub == nvme.SGLSubtypeOffset:
		r.Status = q.describeList(r, d, inCapsule)
	case typ == nvme.SGLDataBlock && sub == nvme.SGLSubtypeAddress && d.Length() == 0:
		// No data: some hosts leave the descriptor of such commands zero.
	default:
		r.Status = nvme.SGLTypeInvalid | nvme.DNR
	}
}

// describeInCapsule checks an offset data block. ICDOFF is 0: offsets count from the end of the
// SQE.
func (q *queue) describeInCapsule(r *request, d *nvme.SGLDescriptor, inCapsule uint32) nvme.Status {
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

// describeList checks a last segment and the descriptors it leads to. They stay in the slot, which
// the device fills again only when the response has been posted. The statuses are those of Base
// figure 102.
func (q *queue) describeList(r *request, d *nvme.SGLDescriptor, inCapsule uint32) nvme.Status {
	off, n := d.Address(), d.Length()
	switch {
	case off > uint64(q.icd):
		return nvme.SGLOffsetInvalid | nvme.DNR
	case n == 0, n%nvme.SGLDescriptorSize != 0, off+uint64(n) > uint64(inCapsule):
		return nvme.InvalidSGLSegment | nvme.DNR
	case n > maxBlocks*nvme.SGLDescriptorSize:
		return nvme.InvalidSGLCount | nvme.DNR
	}
	blocks := q.capsuleData(r)[off : off+uint64(n)]
	total, invalidate, stale := uint32(0), false, uint32(0)
	for i := 0; i < len(blocks); i += nvme.SGLDescriptorSize {
		b := descriptor(blocks[i:])
		switch typ, sub := b.Type(), b.Subtype(); {
		case typ == nvme.SGLKeyedDataBlock && sub == nvme.SGLSubtypeAddress:
		case typ == nvme.SGLKeyedDataBlock && sub == nvme.SGLSubtypeInvalidate:
			invalidate, stale = true, b.Key() // a response invalidates one key; hosts look which
		case typ == nvme.SGLSegment, typ == nvme.SGLLastSegment:
			return nvme.InvalidSGLSegment | nvme.DNR
		default:
			return nvme.SGLTypeInvalid | nvme.DNR
		}
		total += b.KeyedLength()
	}
	r.HostLength, r.blocks = total, blocks
	r.invalidate, r.stale = invalidate && total > 0, stale
	return nvme.Success
}

func descriptor(b []byte) *nvme.SGLDescriptor {
	return (*nvme.SGLDescriptor)(b[:nvme.SGLDescriptorSize])
}

// cursor is how much of a request's data was posted.
type cursor struct {
	segment, offset int // of data(): the segment, and bytes of it
	moved           uint32
	block           int    // of request.blocks: bytes before the descriptor
	used            uint32 // bytes of its data block
}

// remote is the host's memory at the cursor: bytes, at least one if data is left, that one work
// request may move.
func (r *request) remote() (addr uint64, key, room uint32) {
	if r.blocks == nil {
		return r.addr + uint64(r.at.moved), r.rkey, r.HostLength - r.at.moved
	}
	d := descriptor(r.blocks[r.at.block:])
	for d.KeyedLength() == r.at.used {
		r.at.block, r.at.used = r.at.block+nvme.SGLDescriptorSize, 0
		d = descriptor(r.blocks[r.at.block:])
	}
	return d.Address() + uint64(r.at.used), d.Key(), d.KeyedLength() - r.at.used
}

// gather makes a work request that moves data of r on: contiguous memory of the host, at most perWR
// elements of ours.
func (q *queue) gather(r *request, op verbs.SendOpcode, perWR int) verbs.SendWR {
	g, segs := q.g, r.Segs
	addr, key, room := r.remote()
	wr := verbs.SendWR{
		WRID: workID(workQuiet, q.gen, q.number, r.tag), Opcode: op, RemoteAddr: addr, RKey: key,
		FirstSGE: uint32(len(g.sges)),
	}
	for ; wr.NumSGE < uint32(perWR) && r.at.segment < len(segs) && room > 0; wr.NumSGE++ {
		s := &segs[r.at.segment]
		b := s.B[r.at.offset:]
		n := min(uint32(len(b)), room)
		lkey, _ := q.p.key(s)
		g.sges = append(g.sges, verbs.SGE{Addr: mem.Addr(b), Length: n, LKey: lkey})
		room -= n
		r.at.moved += n
		r.at.used += n
		if r.at.offset += int(n); r.at.offset == len(s.B) {
			r.at.segment, r.at.offset = r.at.segment+1, 0
		}
	}
	return wr
}

// pieces is the number of work requests that the rest of the data takes.
func (q *queue) pieces(r *request, perWR int) (n int) {
	if r.blocks == nil {
		return (len(r.Segs) - r.at.segment + perWR - 1) / perWR
	}
	at, sges := r.at, len(q.g.sges)
	for ; r.at.segment < len(r.Segs); n++ {
		q.gather(r, verbs.WRRDMARead, perWR)
	}
	r.at, q.g.sges = at, q.g.sges[:sges]
	return n
}
