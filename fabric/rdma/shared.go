package rdma

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// shared is receives that the queues of a port take together: a shared receive queue and the slots
// behind its work requests.
//
//	refill   slots that are free are posted
//	arrived  a capsule took one; the queue is found by the number of its queue pair
//	vacate   the slot is free again: at once if nothing but the SQE was in it, otherwise before the response is posted
//
// There is a slot for each command of every queue, so that a host which keeps to its depth never
// finds no receive, until the capacity is reached. Beyond that hosts that all send at once wait for
// slots (RNR NAK), and in-capsule data is copied away when few are left. iWARP ends the connection
// of a capsule that finds no receive (RFC 5041 section 7), so queues there have receives of their
// own.
type shared struct {
	p        *port
	srq      verbs.SRQ
	icd      int // bytes of in-capsule data that a slot has room for
	capacity int // slots at most

	// Under g.making.
	slots, depths, refs int // slots that exist, commands and number of the queues

	mu   sync.Mutex // for moments
	made []*chunk   // that the reactor has not taken yet

	// dead: it failed; ended is how many queues have left it, each of which may have taken a slot
	// along. No queue is added to a dead or worn one.
	dead  atomic.Bool
	ended atomic.Int64

	// Reactor only.
	number   uint16 // in g.shareds
	gen      uint32
	attached bool
	chunks   []*chunk // slot i is in chunks[i/chunkSlots]
	free     []uint16 // slots to be posted
	posted   int
	commands int // the sum of the depths of queues
	queues   map[uint32]*queue
}

var errSRQ = errors.New("the device reports SRQ_ERR")

func (s *shared) stride() int { return roundUp(s.icd, pageSize) }

// attach adds a queue and what slots were made for it. Reactor only.
func (s *shared) attach(q *queue) {
	g := s.p.g
	if !s.attached {
		s.attached = true
		g.gen = (g.gen + 1) & genMask
		s.number, s.gen = g.freeShared(), g.gen
		g.shareds[s.number] = s
	}
	s.mu.Lock()
	made := s.made
	s.made = nil
	s.mu.Unlock()
	for _, c := range made {
		for i := range chunkSlots {
			s.free = append(s.free, uint16(len(s.chunks)*chunkSlots+i))
		}
		s.chunks = append(s.chunks, c)
	}
	s.commands += q.conn.depth
	s.queues[q.qp.Num()] = q
	s.refill()
}

// leave takes a queue out whose queue pair does not exist any more. Reactor only.
func (s *shared) leave(q *queue) {
	s.commands -= q.conn.depth
	if s.queues[q.qp.Num()] == q { // the number may have been given to another
		delete(s.queues, q.qp.Num())
	}
	s.ended.Add(1)
}

// detach takes s out of the group. Reactor only.
func (s *shared) detach() {
	if s.attached {
		s.p.g.shareds[s.number] = nil
	}
}

// freeShared finds a number for shared receives. Reactor only.
func (g *group) freeShared() uint16 {
	for i, s := range g.shareds {
		if s == nil {
			return uint16(i)
		}
	}
	g.shareds = append(g.shareds, nil)
	return uint16(len(g.shareds) - 1)
}

func (s *shared) capsule(slot uint16) []byte {
	off := int(slot) % chunkSlots * capsuleSize
	return s.chunks[slot/chunkSlots].region.Bytes()[off : off+capsuleSize]
}

func (s *shared) capsuleData(slot uint16) []byte {
	off := chunkSlots*capsuleSize + int(slot)%chunkSlots*s.stride()
	return s.chunks[slot/chunkSlots].region.Bytes()[off : off+s.icd : off+s.icd]
}

func (s *shared) recvWR(slot uint16) verbs.RecvWR {
	c, i := s.chunks[slot/chunkSlots], uint64(slot%chunkSlots)
	wr := verbs.RecvWR{WRID: workID(workShared, s.gen, s.number, slot), NumSGE: 1}
	wr.SGE[0] = verbs.SGE{Addr: c.base + i*capsuleSize, Length: capsuleSize, LKey: c.key}
	if s.icd > 0 {
		wr.NumSGE = 2
		wr.SGE[1] = verbs.SGE{
			Addr:   c.base + chunkSlots*capsuleSize + i*uint64(s.stride()),
			Length: uint32(s.icd), LKey: c.key,
		}
	}
	return wr
}

// refill posts the slots that are free. Reactor only.
func (s *shared) refill() {
	g := s.p.g
	for len(s.free) > 0 && !s.dead.Load() {
		n := min(len(s.free), cap(g.recvs))
		recvs := g.recvs[:0]
		for _, slot := range s.free[:n] {
			recvs = append(recvs, s.recvWR(slot))
		}
		n, err := s.srq.PostRecv(recvs)
		s.posted += n
		s.free = s.free[:copy(s.free, s.free[n:])]
		if err != nil {
			s.fail(fmt.Errorf("post shared receives: %w", err))
		}
	}
}

// fail ends all queues. Reactor only.
func (s *shared) fail(why error) {
	if s.dead.Swap(true) {
		return
	}
	for _, q := range s.queues {
		q.fail(why)
	}
}

// short says that slots are worth copying for: hosts may send more than there are, and few are
// left.
func (s *shared) short() bool {
	slots := len(s.chunks) * chunkSlots
	return s.commands > slots && s.posted+len(s.free) < slots/4
}

// arrived takes a completion of one of the shared receives.
func (g *group) arrived(wc *verbs.WC) {
	number, gen, slot := uint16(wc.WRID>>16), uint32(wc.WRID>>32)&genMask, uint16(wc.WRID)
	if int(number) >= len(g.shareds) {
		return
	}
	s := g.shareds[number]
	if s == nil || s.gen != gen {
		return
	}
	s.posted--
	q := s.queues[wc.QPNum]
	switch {
	case q == nil || q.state >= queueClosing:
	case wc.Status == verbs.WCWRFlushErr:
		q.fail(errFlushed)
	case wc.Status != verbs.WCSuccess:
		q.fail(fmt.Errorf("%v failed: %v (vendor error %#x)", workRecv, wc.Status, wc.VendorErr))
	case int(wc.ByteLen) < capsuleSize || int(wc.ByteLen) > capsuleSize+q.icd:
		q.fail(fmt.Errorf("capsule of %d bytes, a command has %d and at most %d of data",
			wc.ByteLen, capsuleSize, q.icd))
	case q.taken == q.conn.depth:
		q.fail(fmt.Errorf("more commands than the queue's depth, %d", q.conn.depth))
	default:
		q.taken++
		if r := q.idle.pop(); r != nil {
			r.slot, r.holds = slot, true
			q.begin(r, wc.ByteLen)
		} else { // the responses to earlier ones are in flight
			q.capsules = append(q.capsules, arrival{slot, wc.ByteLen})
		}
		return
	}
	s.free = append(s.free, slot)
}

// arrival is a capsule that waits for a request.
type arrival struct {
	slot uint16
	size uint32
}

// rest makes a request idle that nobody uses and gives it the next capsule that waits.
func (q *queue) rest(r *request) {
	if len(q.capsules) == 0 || q.state >= queueClosing {
		q.idle.push(r)
		return
	}
	a := q.capsules[0]
	q.capsules = q.capsules[:copy(q.capsules, q.capsules[1:])]
	r.slot, r.holds = a.slot, true
	q.begin(r, a.size)
}

// vacate frees the slot of a request: nothing in it is needed any more.
func (q *queue) vacate(r *request) {
	if r.holds {
		r.holds = false
		q.shared.free = append(q.shared.free, r.slot)
	}
}

// forsake frees the slots of capsules that nobody will look at.
func (q *queue) forsake() {
	for _, a := range q.capsules {
		q.shared.free = append(q.shared.free, a.slot)
	}
	q.capsules = q.capsules[:0]
}

// lastReceived takes note that the queue pair takes no more shared receives. What it took is in the
// completion queue.
func (q *queue) lastReceived() {
	if q.shared == nil {
		return
	}
	q.last = true
	q.g.reap(q.cq, q.cq.size)
	q.fail(errFlushed)
	q.drained()
}
