package engine

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// A RecvQueue is where a queue pair takes its receives from: its own RecvRing or an SRQ.
type RecvQueue interface {
	// Take takes the oldest receive out, false if there is none. Engine held.
	Take(wr *verbs.RecvWR) bool
}

// RecvRing is a ring of receives. One goroutine at a time posts. Several engines may take, since
// queue pairs of several engines may share an SRQ.
type RecvRing struct {
	slots  []recvSlot
	maxSGE int
	tail   uint64 // of the goroutine that posts
	head   atomic.Uint64
}

// recvSlot is a slot at position pos modulo the size. turn is pos if the slot is free for that
// receive, and pos+1 when it is in it.
type recvSlot struct {
	turn atomic.Uint64
	wr   verbs.RecvWR
}

// NewRecvRing makes a ring for at least so many receives with up to so many elements.
func NewRecvRing(wrs, sges int) (*RecvRing, error) {
	if wrs < 0 || wrs > maxWR || sges < 0 || sges > len(verbs.RecvWR{}.SGE) {
		return nil, fmt.Errorf("receive queue of %d work requests, %d elements: %w", wrs, sges,
			unix.EINVAL)
	}
	// With one slot, a receive in it would look like the next free place.
	r := &RecvRing{slots: make([]recvSlot, max(powerOfTwo(wrs), 2)), maxSGE: sges}
	for i := range r.slots {
		r.slots[i].turn.Store(uint64(i))
	}
	return r, nil
}

// Post adds receives and returns their number: err is nil if all were added. ENOMEM if the ring is
// full, EINVAL for too many elements. One goroutine at a time calls it; it needs no engine.
func (r *RecvRing) Post(wrs []verbs.RecvWR) (n int, err error) {
	for i := range wrs {
		s := &r.slots[r.tail&uint64(len(r.slots)-1)]
		if wrs[i].NumSGE > uint64(r.maxSGE) {
			return i, errRecvWR
		}
		if s.turn.Load() != r.tail {
			return i, errRecvFull
		}
		s.wr = wrs[i]
		s.turn.Store(r.tail + 1)
		r.tail++
	}
	return len(wrs), nil
}

var (
	errRecvFull = fmt.Errorf("post receive: the queue is full: %w", unix.ENOMEM)
	errRecvWR   = fmt.Errorf("post receive: too many elements: %w", unix.EINVAL)
)

// Take takes the oldest receive out, false if there is none.
func (r *RecvRing) Take(wr *verbs.RecvWR) bool {
	for {
		pos := r.head.Load()
		s := &r.slots[pos&uint64(len(r.slots)-1)]
		switch turn := s.turn.Load(); {
		case turn <= pos:
			return false
		case turn == pos+1 && r.head.CompareAndSwap(pos, pos+1):
			*wr = s.wr
			s.turn.Store(pos + uint64(len(r.slots)))
			return true
		}
	}
}

// SRQ is a shared receive queue: a verbs.SRQ. A queue pair holds its SRQ.
type SRQ struct {
	uses
	*RecvRing
	pd *PD
}

// CreateSRQ makes a shared receive queue.
func (p *PD) CreateSRQ(init verbs.SRQInit) (verbs.SRQ, error) {
	fail := func(err error) (verbs.SRQ, error) {
		return nil, fmt.Errorf("create shared receive queue: %w", err)
	}
	if init.MaxWR < 1 {
		return fail(unix.EINVAL)
	}
	r, err := NewRecvRing(init.MaxWR, init.MaxSGE)
	if err != nil {
		return fail(err)
	}
	if err := p.Hold(); err != nil {
		return fail(err)
	}
	if err := reserve(&p.dev.srqs, maxSRQ); err != nil {
		p.Release()
		return fail(err)
	}
	return &SRQ{RecvRing: r, pd: p}, nil
}

// PostRecv posts receives. One goroutine at a time calls it.
func (s *SRQ) PostRecv(wrs []verbs.RecvWR) (n int, err error) { return s.Post(wrs) }

// Destroy frees the SRQ. EBUSY while a queue pair uses it.
func (s *SRQ) Destroy() error {
	if err := s.free(); err != nil {
		return fmt.Errorf("destroy shared receive queue: %w", err)
	}
	s.pd.dev.srqs.Add(-1)
	s.pd.Release()
	return nil
}

// powerOfTwo returns the least power of two that is at least n.
func powerOfTwo(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}
