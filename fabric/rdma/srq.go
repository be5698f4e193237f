package rdma

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// srq is a shared receive queue: receives that the queues of a poller share. A slot is posted, and
// a capsule takes it. Its queue is found by the number of the queue pair. The slot is free again at
// once if it holds only the SQE, otherwise just before the response is posted.
//
// There is a slot for each command of every queue, up to the capacity, so a host that keeps to its
// depth always finds a receive. Beyond the capacity, when less than a quarter of the slots is left,
// in-capsule data is copied away. Without memory for that, a queue that holds more than its share
// of a quarter has the command interrupted. So there are receives for every queue, regardless of
// the commands of others, unless hosts send faster than the reactor polls (RNR NAK). iWARP ends the
// connection of a capsule that finds no receive (RFC 5041 section 7), so queues there have their
// own receives.
type srq struct {
	verbs.SRQ
	p        *poller
	capacity int // maximum number of slots

	// Under g.setupMu: existing slots, and the commands and the number of the queues.
	slots, depths, refs int

	mu    sync.Mutex // held briefly
	slabs []*slab    // all, even if the reactor does not use them yet

	// No queue is added when the SRQ has failed, or when left, the number of queues that have
	// ended, is large: each may have lost a slot.
	failed atomic.Bool
	left   atomic.Int64

	// Reactor only.
	recv     recvQueue
	id       uint64 // in g.srqs, if attached
	attached bool
	commands int // the sum of the depths of queues
	queues   map[uint32]*queue
}

const (
	srqSlabShift = 7
	srqSlabSlots = 1 << srqSlabShift
)

// useSRQ reports whether queues on a device share receives. It logs the reason if that was
// configured but is not possible. Any goroutine may call it.
func (t *Transport) useSRQ(dev verbs.Device) bool {
	if t.cfg.SRQSize == 0 || dev == nil {
		return false
	}
	attr := dev.Attr()
	switch {
	case attr.IWARP:
		t.disableSRQ(dev,
			errors.New("a capsule that finds no receive ends its connection on iWARP"))
	case attr.MaxSRQ < 1 || attr.MaxSRQWR < srqSlabSlots ||
		attr.MaxSRQSGE > 0 && attr.MaxSRQSGE < 2:
		t.disableSRQ(dev,
			fmt.Errorf("it has %d shared receive queues of %d receives with %d elements",
				attr.MaxSRQ, attr.MaxSRQWR, attr.MaxSRQSGE))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, no := t.noSRQ[dev]
	return !no
}

// disableSRQ gives new queues on a device their own receives, and logs that once.
func (t *Transport) disableSRQ(dev verbs.Device, reason error) {
	t.mu.Lock()
	_, known := t.noSRQ[dev]
	t.noSRQ[dev] = struct{}{}
	t.mu.Unlock()
	if !known {
		t.cfg.Log.Warn("RDMA: queues on this device do not share receives, each has its own",
			"device", dev.Attr().Name, "reason", reason)
	}
}

// acquireSRQ finds or makes a shared receive queue for one more queue, with enough slots;
// releaseSRQ undoes that. It returns nil if the device has none. g.setupMu is held; not on a
// reactor.
func (p *poller) acquireSRQ(depth int) (*srq, error) {
	s := p.srq
	if s == nil || !s.usable() {
		var err error
		if s, err = p.newSRQ(); err != nil {
			p.g.t.disableSRQ(p.dev.dev, err)
			return nil, nil
		}
		p.srq = s
	}
	s.depths += depth
	s.refs++
	// A queue that has ended may have lost a slot. It is replaced if there is memory.
	for need := min(s.depths, s.capacity); s.slots < min(need+int(s.left.Load()), s.capacity); {
		if err := s.grow(); err == nil {
			s.slots += srqSlabSlots
		} else if s.slots < need {
			return nil, errors.Join(err, p.releaseSRQ(s, depth))
		} else {
			break
		}
	}
	return s, nil
}

// releaseSRQ undoes acquireSRQ, and frees a shared receive queue that no queue uses: the next queue
// starts with all slots. g.setupMu is held; not on a reactor.
func (p *poller) releaseSRQ(s *srq, depth int) error {
	s.depths -= depth
	if s.refs--; s.refs > 0 {
		return nil
	}
	if p.srq == s {
		p.srq = nil
	}
	p.g.callReactor(func() {
		if s.attached {
			p.g.srqs.remove(s.id)
		}
	})
	if err := s.Destroy(); err != nil {
		return fmt.Errorf("free a shared receive queue of %s: %w", p.dev.attr.Name, err)
	}
	var errs []error
	for _, sl := range s.slabs {
		if err := sl.free(); err != nil {
			errs = append(errs, err)
			continue
		}
		p.g.t.admission.Uncharge(s.slabSize())
	}
	return errors.Join(errs...)
}

func (p *poller) newSRQ() (*srq, error) {
	s := &srq{p: p, queues: make(map[uint32]*queue)}
	s.capacity = min(p.g.t.cfg.SRQSize, p.dev.attr.MaxSRQWR)
	if p.dev.attr.MaxCQE > 0 {
		s.capacity = min(s.capacity, p.dev.attr.MaxCQE/2) // see cq.srqEntries
	}
	s.capacity = s.capacity / srqSlabSlots * srqSlabSlots
	var err error
	if s.SRQ, err = p.dev.pd.CreateSRQ(verbs.SRQInit{MaxWR: s.capacity, MaxSGE: 2}); err != nil {
		return nil, err
	}
	s.recv.post, s.recv.shift = s.SRQ, srqSlabShift
	return s, nil
}

// usable reports whether queues may be added. A queue that ends while a capsule arrives loses a
// slot on some devices (rxe). So a new SRQ is made when an eighth as many queues have ended as
// there are slots.
func (s *srq) usable() bool { return !s.failed.Load() && s.left.Load() < int64(s.capacity/8) }

func (s *srq) slabSize() int64 {
	return int64(slabSize(srqSlabSlots, s.p.g.t.cfg.InCapsuleSize, 0))
}

// grow adds a slab, which the reactor uses from the next attach on.
func (s *srq) grow() error {
	t := s.p.g.t
	if err := t.admission.Charge(s.slabSize()); err != nil {
		return err
	}
	sl, err := s.p.newSlab(srqSlabSlots, t.cfg.InCapsuleSize, 0)
	if err != nil {
		t.admission.Uncharge(s.slabSize())
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slabs = append(s.slabs, sl)
	return nil
}

// attach adds a queue and the slots made for it. Reactor only.
func (s *srq) attach(q *queue) {
	if !s.attached {
		s.attached = true
		s.id = s.p.g.srqs.add(s)
		s.recv.wrid = workID(workSRQRecv, s.id, 0)
	}
	s.mu.Lock()
	slabs := s.slabs
	s.mu.Unlock()
	for _, sl := range slabs[len(s.recv.slabs):] {
		s.recv.addSlots(sl, srqSlabSlots)
	}
	s.commands += q.conn.depth
	s.queues[q.qp.Num()] = q
	s.refill()
}

// leave removes a queue after its queue pair was destroyed. Reactor only.
func (s *srq) leave(q *queue) {
	s.commands -= q.conn.depth
	if s.queues[q.qp.Num()] == q { // the number may have been given to another
		delete(s.queues, q.qp.Num())
	}
	s.left.Add(1)
}

// refill posts the free slots. Reactor only.
func (s *srq) refill() {
	if s.failed.Load() {
		return
	}
	if err := s.recv.refill(s.p.g.recvs); err != nil {
		s.fail(fmt.Errorf("post shared receives: %w", err))
	}
}

// fail ends all queues. Reactor only.
func (s *srq) fail(reason error) {
	if s.failed.Swap(true) {
		return
	}
	for _, q := range s.queues {
		q.fail(reason)
	}
}

// short reports whether to copy in-capsule data to free its slot, because few slots are left.
func (s *srq) short() bool {
	slots := len(s.recv.slabs) * srqSlabSlots
	return s.commands > slots && s.recv.posted+len(s.recv.free) < slots/4
}

// overShare reports whether a queue must give back a slot: few are left for others.
func (q *queue) overShare(slots int) bool {
	s := q.srq
	return s != nil && s.short() && len(s.queues) > 1 &&
		slots > len(s.recv.slabs)*srqSlabSlots/4/len(s.queues)
}
