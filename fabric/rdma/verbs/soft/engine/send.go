package engine

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// MaxMessage is the largest message in bytes. RoCE allows 2^31, but then two of its sequence
// numbers could not be told apart at the smallest MTU.
const MaxMessage = 1 << 30

// A SendRing is the send queue of a queue pair: Head is the oldest work request that is not
// completed, Tail the end. One goroutine at a time posts, after the tail; the holder of the engine
// uses the slots before it. A T is the state of a work request in a protocol.
type SendRing[T any] struct {
	slots      []SendSlot[T]
	sges       []verbs.SGE // maxSGE for each slot
	maxSGE     int
	Head, Tail atomic.Uint64
}

// A SendSlot is a work request of a SendRing.
type SendSlot[T any] struct {
	verbs.SendWR
	Bytes uint32
	// Status is set if the work request has failed. It completes after earlier ones.
	Status verbs.WCStatus
	// State is zero when the work request is posted.
	State T
}

// Init makes the slots. It is called once.
func (r *SendRing[T]) Init(init verbs.QPInit) {
	r.slots = make([]SendSlot[T], init.MaxSendWR)
	r.maxSGE = init.MaxSendSGE
	r.sges = make([]verbs.SGE, init.MaxSendWR*init.MaxSendSGE)
}

// Errors of posting are made once, because posting does not allocate.
var (
	ErrSendState = fmt.Errorf("post send: the queue pair is not connected: %w", unix.EINVAL)
	errSendFull  = fmt.Errorf("post send: the send queue is full: %w", unix.ENOMEM)
	errSendWR    = fmt.Errorf("post send: malformed work request: %w", unix.EINVAL)
)

// Post adds work requests and returns their number: err is nil if all were added. ENOMEM if the
// ring is full, EINVAL for a malformed one.
func (r *SendRing[T]) Post(wrs []verbs.SendWR, sges []verbs.SGE) (n int, err error) {
	tail := r.Tail.Load()
	for n < len(wrs) {
		if tail-r.Head.Load() >= uint64(len(r.slots)) {
			err = errSendFull
			break
		}
		if !r.put(tail, &wrs[n], sges) {
			err = errSendWR
			break
		}
		tail++
		n++
	}
	r.Tail.Store(tail)
	return n, err
}

// put fills a slot. It returns false for a malformed work request.
func (r *SendRing[T]) put(at uint64, wr *verbs.SendWR, sges []verbs.SGE) bool {
	n := int(wr.NumSGE)
	if n > r.maxSGE || wr.Flags&verbs.SendInline != 0 ||
		uint64(wr.FirstSGE)+uint64(n) > uint64(len(sges)) && n > 0 {
		return false
	}
	switch wr.Opcode {
	case verbs.WRSend, verbs.WRSendWithInv, verbs.WRRDMAWrite, verbs.WRRDMARead:
	default:
		return false
	}
	total := uint64(0)
	slot := int(at % uint64(len(r.slots)))
	if n > 0 {
		to := r.sges[slot*r.maxSGE:][:copy(r.sges[slot*r.maxSGE:][:n], sges[wr.FirstSGE:])]
		for i := range to {
			total += uint64(to[i].Length)
		}
	}
	if total > MaxMessage {
		return false
	}
	r.slots[slot] = SendSlot[T]{SendWR: *wr, Bytes: uint32(total)}
	return true
}

// Slot returns the work request at a position, with its elements.
func (r *SendRing[T]) Slot(at uint64) (*SendSlot[T], []verbs.SGE) {
	i := int(at % uint64(len(r.slots)))
	e := &r.slots[i]
	return e, r.sges[i*r.maxSGE:][:e.NumSGE]
}
