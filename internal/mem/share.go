package mem

import (
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
)

// The sharing rules of a pool (docs/adr/0021): a host may have up to hostFactor times the bytes
// that stay free, and a namespace, counting all hosts, up to namespaceFactor times. So memory stays
// free however much one host or device holds, and for however long: a host that is alone may have
// two thirds, each of two hosts two fifths, and one namespace half. A flow is little if it has at
// most one part in littlePart of the bytes that stay free. For a little flow the host may have
// twice as much, and the namespace any amount: so a host reaches a namespace of which others hold
// much, and a host with all commands stuck in one namespace reaches others. A host without memory
// gets its first allocation regardless of the namespace and of its size.
//
// Allocations of AllocReserve count separately, with half the factors: other memory of the host,
// which may depend on data received later, must not keep it from the reserve.
const (
	hostFactor      = 2
	namespaceFactor = 1
	littlePart      = 8
	// largePart: a host without memory may get a request of more than this part of the pool.
	largePart = 4
)

// Share counts the use of the pools of one reactor by a host, a network or a namespace. The zero
// Share counts nothing. Only its reactor uses it.
type Share struct {
	// Limit is the most bytes of one pool, however much is free. 0 means the rules above.
	Limit int
	used  [poolKinds]int
	// urgent is the part of used that came from AllocReserve.
	urgent [poolKinds]int
	// keeps is the last Pool.scan in which this share did not allow the request of a waiter.
	keeps [poolKinds]uint64
}

// Used returns the bytes of data memory in use.
func (s *Share) Used() int { return s.used[dataPool] }

// Most returns the bytes of data memory that the share may have of the pool, given the use by
// others.
func (p *Pool) Most(s *Share) int { return subnet.Most(s.Used(), p.free(false)) }

// Idle reports whether nothing of any pool is in use.
func (s *Share) Idle() bool { return s.used == [poolKinds]int{} }

// class returns the bytes in use that count for an allocation of a kind of pool.
func (s *Share) class(kind poolKind, urgent bool) int {
	if urgent {
		return s.urgent[kind]
	}
	return s.used[kind]
}

// Flow is the traffic between a host and a namespace. Memory is allocated for a flow, and waiting
// flows take turns. It must not move.
type Flow struct {
	// Host is the Share of the host, with all its namespaces.
	Host *Share
	// Network is the Share of all hosts of the network with an unproven NQN, bounded like a host.
	// It is nil if the NQN of this host is proven.
	Network *Share
	// Namespace is the Share of the namespace with all hosts, nil for commands without one.
	Namespace *Share

	queues [poolKinds]flowQueue
}

// holder returns the share of the host or of the network, whichever uses more of a kind of pool, or
// nil.
func (f *Flow) holder(kind poolKind, urgent bool) *Share {
	if f.Network != nil && f.Network.class(kind, urgent) > f.Host.class(kind, urgent) {
		return f.Network
	}
	return f.Host
}

// poolKind selects the counts and waiters of a Flow; memory of one kind does not help another.
type poolKind uint8

const (
	dataPool poolKind = iota
	stagingPool
	poolKinds
)

// flowQueue has the use of a pool by a flow, and the waiting allocations, oldest first.
type flowQueue struct {
	flow    *Flow
	pool    *Pool
	next    *flowQueue // for another pool of the same kind
	used    int
	urgent  list.List[Allocation] // of WaitReserve
	waiting list.List[Allocation]
	node    list.Node[flowQueue] // in Pool.waiting while an allocation waits
	place   list.Place           // in Pool.flows, likewise
}

func (q *flowQueue) empty() bool { return q.urgent.Empty() && q.waiting.Empty() }

// queue returns the queue of f, or the queue of allocations without a flow if f is nil.
func (p *Pool) queue(f *Flow) *flowQueue {
	if f == nil {
		f = &p.noFlow
	}
	q := &f.queues[p.kind]
	for q.pool != p {
		if q.pool == nil {
			q.pool, q.flow = p, f
		} else if q.next == nil { // rare, and only for staging memory
			q.next = &flowQueue{pool: p, flow: f}
			q = q.next
		} else {
			q = q.next
		}
	}
	return q
}

// within reports whether the shares allow n more bytes for a flow.
func (p *Pool) within(q *flowQueue, n int, urgent bool) bool {
	return p.hostWithin(q, n, urgent) && p.namespaceWithin(q, n, urgent)
}

// hostWithin is within for the shares of the host and its network alone.
func (p *Pool) hostWithin(q *flowQueue, n int, urgent bool) bool {
	h := q.flow.holder(p.kind, urgent)
	if h == nil {
		return true
	}
	if h.Limit > 0 {
		return h.used[p.kind]+n <= h.Limit
	}
	used, left := h.class(p.kind, urgent), hostFactor*p.left(n, urgent)
	if !urgent && p.isLittle(q, n) {
		left *= 2
	}
	return used+n <= left || used == 0 && (urgent || n > p.most/largePart)
}

// namespaceWithin is within for the share of the namespace alone.
func (p *Pool) namespaceWithin(q *flowQueue, n int, urgent bool) bool {
	h, ns := q.flow.holder(p.kind, urgent), q.flow.Namespace
	if ns == nil || h != nil && h.class(p.kind, urgent) == 0 || p.isLittle(q, n) {
		return true
	}
	used := ns.class(p.kind, urgent)
	return used == 0 || used+n <= namespaceFactor*p.left(n, urgent)
}

// left returns the bytes that stay free after an allocation of n bytes, halved for the reserve.
func (p *Pool) left(n int, urgent bool) int {
	left := max(p.free(urgent)-n, 0)
	if urgent {
		left /= 2
	}
	return left
}

// isLittle reports whether a flow has little memory even with n more bytes.
func (p *Pool) isLittle(q *flowQueue, n int) bool {
	return (q.used+n)*littlePart <= p.free(false)-n
}

// charge adds the bytes of an allocation, times sign, to the use of its flow.
func (p *Pool) charge(a *Allocation, sign int) {
	a.chargeHost(sign)
	if ns := a.queue.flow.Namespace; ns != nil {
		ns.add(p.kind, sign*a.charged, a.urgent)
	}
}

// chargeHost is charge without the namespace.
func (a *Allocation) chargeHost(sign int) {
	a.queue.used += sign * a.charged
	for _, s := range [...]*Share{a.queue.flow.Host, a.queue.flow.Network} {
		if s != nil {
			s.add(a.pool.kind, sign*a.charged, a.urgent)
		}
	}
}

func (s *Share) add(kind poolKind, n int, urgent bool) {
	s.used[kind] += n
	if urgent {
		s.urgent[kind] += n
	}
}
