package engine

import (
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/list"
)

// readTime is the time for which a reservation holds. A peer that is silent, or slow on purpose,
// keeps others from reading for no longer.
const readTime = 10 * time.Millisecond

// A Reservation is room in the receive buffer of an engine for the response to a READ.
type Reservation struct {
	n     int
	until time.Duration
	node  list.Node[Reservation]
}

// reads shares the receive buffer of an engine between READs: a requester decides when responses
// come, and packets that find the buffer full are lost. Endpoints that find no room wait in the
// order of asking. It is an endpoint itself, for its deadline.
type reads struct {
	Handle
	e       *Engine
	left    int // bytes not reserved; less than 0 if one response is larger than all
	all     int
	held    list.List[Reservation] // the oldest first
	waiting list.List[Handle]
}

func (r *reads) init(e *Engine, bytes int) {
	r.e, r.ep, r.left, r.all = e, r, bytes, bytes
}

// ReserveReads reserves n bytes. Half of the buffer is for READs; one response may be larger. It
// reports false if the endpoint must wait: it runs again when it is its turn, and asks again or
// calls ForgetReads. v is not in use, and stays where it is while it is. Engine held.
func (e *Engine) ReserveReads(h *Handle, v *Reservation, n int) bool {
	r := &e.reads
	first := r.waiting.First()
	if first != nil && first != h || r.left < n && r.left < r.all {
		if !h.wait.Listed() {
			r.waiting.Push(h, &h.wait)
		}
		if v := r.held.First(); v != nil { // else the first that waits is about to run
			e.deadlines.set(&r.Handle, v.until)
		}
		return false
	}
	r.left -= n
	v.n, v.until = n, e.Now()+readTime
	r.held.Push(v, &v.node)
	e.ForgetReads(h)
	return true
}

// ReleaseReads ends a reservation, if it has not ended. Engine held.
func (e *Engine) ReleaseReads(v *Reservation) {
	r := &e.reads
	if v.node.Listed() {
		r.held.Remove(&v.node)
		r.left += v.n
		r.next()
	}
}

// ForgetReads ends the wait of an endpoint. Engine held.
func (e *Engine) ForgetReads(h *Handle) {
	if h.wait.Listed() {
		e.reads.waiting.Remove(&h.wait)
		e.reads.next()
	}
}

// next runs the endpoint that has waited longest.
func (r *reads) next() {
	if h := r.waiting.First(); h != nil {
		r.e.Schedule(h)
	}
}

// Expire ends the reservations that have held long enough.
func (r *reads) Expire() {
	for v := r.held.First(); v != nil && v.until <= r.e.Now(); v = r.held.First() {
		r.e.ReleaseReads(v)
	}
	if v := r.held.First(); v != nil && !r.waiting.Empty() {
		r.e.deadlines.set(&r.Handle, v.until)
	}
}

// Receive and Run are of Endpoint and never called.
func (*reads) Receive(*wire.Packet, *packet.Header) {}
func (*reads) Run() bool                            { return false }
