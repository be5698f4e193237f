package rdma

import (
	"errors"
	"fmt"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// slab is registered memory of a queue or of a shared receive queue. It has receive slots: their
// capsules and areas of whole pages for in-capsule data. After the capsules it has the responses
// of a queue. Only the device writes there: it is registered for LOCAL_WRITE.
type slab struct {
	region    *mem.Region
	mr        verbs.MR
	key       uint32
	base      uint64 // address of the region
	responses int    // offset of the first response
	inCapsule int    // offset of the first area of in-capsule data
	stride    int    // from one area to the next
	icd       int    // bytes of in-capsule data per capsule, 0 on the admin queue
}

// slabSize is the size of slots, icd bytes of in-capsule data each, and room for responses.
func slabSize(slots, icd, responses int) int {
	return roundUp(slots*capsuleSize+responses, pageSize) + slots*roundUp(icd, pageSize)
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// newSlab maps and registers a slab. Not on a reactor.
func (p *poller) newSlab(slots, icd, responses int) (*slab, error) {
	size := slabSize(slots, icd, responses)
	region, err := mem.Map("RDMA capsules", size)
	if err != nil {
		return nil, err
	}
	s := &slab{
		region: region, base: mem.Addr(region.Bytes()), responses: slots * capsuleSize, icd: icd,
		stride: roundUp(icd, pageSize),
	}
	s.inCapsule = size - slots*s.stride
	p.g.bindToNode(region)
	if s.mr, err = p.dev.registerMR(region.Bytes(), verbs.AccessLocalWrite); err != nil {
		return nil, errors.Join(fmt.Errorf(
			"register %d bytes for capsules with %s: %w (see the memlock limit)", size,
			p.dev.attr.Name, err), region.Unmap())
	}
	s.key = s.mr.LKey()
	return s, nil
}

// free frees the memory. Memory that cannot be deregistered stays mapped, because the device might
// still use it. Not on a reactor.
func (s *slab) free() error {
	if err := s.mr.Dereg(); err != nil {
		return fmt.Errorf("free memory of capsules: %w", err)
	}
	return s.region.Unmap()
}

// sge describes n bytes at an offset.
func (s *slab) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: s.base + uint64(off), Length: uint32(n), LKey: s.key}
}

// recvQueue receives capsules: the receive queue of a queue pair, or a shared receive queue. Slot i
// is in slabs[i>>shift]. Reactor only.
type recvQueue struct {
	post interface { // a verbs.QP or a verbs.SRQ
		PostRecv(wrs []verbs.RecvWR) (n int, err error)
	}
	wrid   uint64 // of slot 0
	slabs  []*slab
	shift  uint8
	free   []uint16 // slots to post
	posted int
}

// at returns the slab of a slot, and its index there.
func (r *recvQueue) at(slot uint16) (*slab, int) {
	return r.slabs[slot>>r.shift], int(slot & (1<<r.shift - 1))
}

// capsule returns the command capsule in a slot.
func (r *recvQueue) capsule(slot uint16) []byte {
	s, i := r.at(slot)
	return s.region.Bytes()[i*capsuleSize : (i+1)*capsuleSize]
}

func (r *recvQueue) capsuleData(slot uint16) mem.Segment {
	s, i := r.at(slot)
	off := s.inCapsule + i*s.stride
	return mem.Segment{B: s.region.Bytes()[off : off+s.icd : off+s.icd], Region: s.region.ID()}
}

// refill posts the free slots. It builds the work requests in wrs.
func (r *recvQueue) refill(wrs []verbs.RecvWR) error {
	for len(r.free) > 0 {
		batch := min(len(r.free), cap(wrs))
		wrs = wrs[:batch]
		for i, slot := range r.free[:batch] {
			s, at := r.at(slot)
			wrs[i] = verbs.RecvWR{WRID: r.wrid | uint64(slot), NumSGE: 1}
			wrs[i].SGE[0] = s.sge(at*capsuleSize, capsuleSize)
			if s.icd > 0 {
				wrs[i].NumSGE = 2
				wrs[i].SGE[1] = s.sge(s.inCapsule+at*s.stride, s.icd)
			}
		}
		n, err := r.post.PostRecv(wrs)
		r.posted += n
		r.free = r.free[:copy(r.free, r.free[n:])]
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *recvQueue) addSlots(s *slab, n int) {
	first := len(r.slabs) << r.shift
	r.slabs = append(r.slabs, s)
	for i := range n {
		r.free = append(r.free, uint16(first+i))
	}
}
