package rdma

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// shared is receives that the queues of a port take together: a shared receive queue and the slots behind its work requests.
//
//	refill   slots that are free are posted
//	arrived  a capsule took one; the queue is found by the number of its queue pair
//	vacate   the slot is free again: at once if nothing but the SQE was in it, otherwise before the response is posted
//
// There is a slot for each command of every queue, so that a host which keeps to its depth never finds no receive, until the
// capacity is reached. Beyond that hosts that all send at once wait for slots (RNR NAK), and in-capsule data is copied away when few are left.
// iWARP ends the connection of a capsule that finds no receive (RFC 5041 section 7), so queues there have receives of their own.
type shared struct {
	p        *port
	srq      verbs.SRQ
	icd      int // bytes of in-capsule data that a slot has room for
	capacity int // slots at most

	// Under g.making.
	slots, depths, refs int // slots that exist, commands and number of the queues

	mu   sync.Mutex // for moments
	made []*chunk   // that the reactor has not taken yet

	// dead: it failed; ended is how many queues have left it, each of which may have taken a slot along. No queue is added to a dead
	// or worn one.
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

// chunk is the registered memory of chunkSlots slots: capsules, then in-capsule data page by page.
type chunk struct {
	size   int // as it is charged
	region *mem.Region
	mr     verbs.MR
	key    uint32
	base   uint64
}

const (
	chunkSlots = 128
	maxShared  = 1 << 15
)

var errSRQ = errors.New("the device reports SRQ_ERR")

// sharing says whether queues on a device share receives, and why not if that was asked for. Any goroutine may call it.
func (t *Transport) sharing(dev verbs.Device) bool {
	if t.cfg.SharedReceives == 0 || dev == nil {
		return false
	}
	attr := dev.Attr()
	switch {
	case attr.IWARP:
		t.shareNot(dev, errors.New("a capsule that finds no receive ends its connection on iWARP"))
	case attr.MaxSRQ < 1 || attr.MaxSRQWR < chunkSlots || attr.MaxSRQSGE > 0 && attr.MaxSRQSGE < 2:
		t.shareNot(dev, fmt.Errorf("it has %d shared receive queues of %d receives with %d elements", attr.MaxSRQ, attr.MaxSRQWR, attr.MaxSRQSGE))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, not := t.unshared[dev]
	return !not
}

// shareNot gives queues on a device receives of their own from now on, and says so once.
func (t *Transport) shareNot(dev verbs.Device, why error) {
	t.mu.Lock()
	_, known := t.unshared[dev]
	t.unshared[dev] = struct{}{}
	t.mu.Unlock()
	if !known {
		t.cfg.Log.Warn("RDMA: queues on this device do not share receives, each has its own", "device", dev.Attr().Name, "reason", why)
	}
}

// share finds or makes the shared receives for one more queue, with enough slots for it; unshare undoes that. g.making is held; not
// on a reactor.
func (p *port) share(depth int) (*shared, error) {
	s := p.shared
	if s == nil || s.worn() {
		var err error
		if s, err = p.newShared(); err != nil {
			p.g.t.shareNot(p.dev.dev, err)
			return nil, nil
		}
		p.shared = s
	}
	for want := min(s.depths+depth, s.capacity); s.slots < want; s.slots += chunkSlots {
		c, err := s.newChunk()
		if err != nil {
			return nil, errors.Join(err, p.unshared(s))
		}
		s.mu.Lock()
		s.made = append(s.made, c)
		s.mu.Unlock()
	}
	s.depths += depth
	s.refs++
	return s, nil
}

// unshare takes a queue's share back. g.making is held; not on a reactor.
func (p *port) unshare(s *shared, depth int) error {
	s.depths -= depth
	s.refs--
	return p.unshared(s)
}

// unshared frees what no queue uses: the next one starts with all slots, whatever happened to these.
func (p *port) unshared(s *shared) error {
	if s.refs > 0 {
		return nil
	}
	if p.shared == s {
		p.shared = nil
	}
	detached := make(chan struct{})
	p.g.cfg.Loop.Post(func() {
		s.detach()
		close(detached)
	})
	<-detached
	return s.destroy()
}

func (p *port) newShared() (*shared, error) {
	s := &shared{p: p, icd: p.g.t.cfg.InCapsuleSize, queues: make(map[uint32]*queue)}
	s.capacity = min(p.g.t.cfg.SharedReceives, p.dev.attr.MaxSRQWR)
	if p.dev.attr.MaxCQE > 0 {
		s.capacity = min(s.capacity, p.dev.attr.MaxCQE/2) // see reserve
	}
	s.capacity = s.capacity / chunkSlots * chunkSlots
	var err error
	if s.srq, err = p.dev.pd.CreateSRQ(verbs.SRQInit{MaxWR: s.capacity, MaxSGE: 2}); err != nil {
		return nil, err
	}
	return s, nil
}

// worn says that no queue should be added. A queue that ends while a capsule arrives takes a slot along where the device forgets it (rxe), so
// after an eighth as many ends as there are slots a new one is made.
func (s *shared) worn() bool { return s.dead.Load() || s.ended.Load() >= int64(s.capacity/8) }

func (s *shared) stride() int { return roundUp(s.icd, pageSize) }

func (s *shared) newChunk() (_ *chunk, err error) {
	t := s.p.g.t
	size := chunkMemory(s.icd)
	if err := t.charge(size); err != nil {
		return nil, err
	}
	c := &chunk{size: size}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.free(t))
		}
	}()
	if c.region, err = mem.Map("RDMA capsules", size); err != nil {
		return nil, err
	}
	s.p.g.near(c.region)
	if c.mr, err = s.p.dev.pd.RegMR(c.region.Bytes(), verbs.AccessLocalWrite); err != nil {
		return nil, fmt.Errorf("register %d bytes for shared capsules with %s: %w (see the memlock limit)", size, s.p.dev.attr.Name, err)
	}
	c.key, c.base = c.mr.LKey(), mem.Addr(c.region.Bytes())
	return c, nil
}

func chunkMemory(icd int) int { return chunkSlots * (capsuleSize + roundUp(icd, pageSize)) }

// free gives the memory of a chunk back that nobody uses. Not on a reactor.
func (c *chunk) free(t *Transport) error {
	if c.mr != nil {
		if err := c.mr.Dereg(); err != nil {
			return fmt.Errorf("free shared capsules: %w", err)
		}
	}
	if c.region != nil {
		if err := c.region.Unmap(); err != nil {
			return err
		}
	}
	t.uncharge(c.size)
	return nil
}

// destroy frees everything. No queue uses it and the reactor has let go of it; not on a reactor.
func (s *shared) destroy() error {
	if err := s.srq.Destroy(); err != nil {
		return fmt.Errorf("free a shared receive queue of %s: %w", s.p.dev.attr.Name, err)
	}
	var errs []error
	for _, c := range append(s.chunks, s.made...) {
		errs = append(errs, c.free(s.p.g.t))
	}
	return errors.Join(errs...)
}

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
		wr.SGE[1] = verbs.SGE{Addr: c.base + chunkSlots*capsuleSize + i*uint64(s.stride()), Length: uint32(s.icd), LKey: c.key}
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

// short says that slots are worth copying for: hosts may send more than there are, and few are left.
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
		q.fail(fmt.Errorf("capsule of %d bytes, a command has %d and at most %d of data", wc.ByteLen, capsuleSize, q.icd))
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

// lastReceived takes note that the queue pair takes no more shared receives. What it took is in the completion queue.
func (q *queue) lastReceived() {
	if q.shared == nil {
		return
	}
	q.last = true
	q.g.reap(q.cq, q.cq.size)
	q.fail(errFlushed)
	q.drained()
}
