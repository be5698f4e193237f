package mem

import (
	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
)

// How the memory of a pool is shared out (docs/adr/0021): a host may have up to hostFactor times
// as many bytes as stay free, and a namespace, of all hosts, up to namespaceFactor times. So
// whatever one host or one device holds, and for however long, memory stays free: a host that is
// alone may have two thirds, each of two hosts two fifths, and one namespace half. Twice as much is
// allowed to a host for a flow that has little, one part in littlePart of what stays free; the
// namespace may then have any: a host reaches a namespace of which others hold much, and one whose
// commands all hang in one namespace reaches others. A host that has nothing gets its first
// allocation whatever the namespace has, and however large it is.
//
// What AllocReserve gives out counts by itself, with half the factors: other memory of the host may
// be freed only by what comes behind it, so that must not keep it from getting some.
const (
	hostFactor      = 2
	namespaceFactor = 1
	littlePart      = 8
	// largePart: what needs more of the pool is allowed to a host that has nothing.
	largePart = 4
)

// Share counts what a host, a network or a namespace has of the pools of one reactor. The zero
// Share has nothing. Its reactor uses it.
type Share struct {
	// Limit is the most bytes that it may have of one pool, whatever is free. 0: as above.
	Limit int
	used  [poolKinds]int
	// urgent is the part of used that AllocReserve gave out.
	urgent [poolKinds]int
	// keeps is the Pool.scan in which one waited that the share does not allow what it asks for.
	keeps [poolKinds]uint64
}

// Used returns the bytes of data memory that it has.
func (s *Share) Used() int { return s.used[dataPool] }

// Most returns how many bytes of data memory it may have of the pool, as long as others have what
// they have.
func (p *Pool) Most(s *Share) int { return subnet.Most(s.Used(), p.free(false)) }

// Idle says that it has nothing of any pool.
func (s *Share) Idle() bool { return s.used == [poolKinds]int{} }

// class returns the bytes that count for an allocation of a kind of pool.
func (s *Share) class(kind poolKind, urgent bool) int {
	if urgent {
		return s.urgent[kind]
	}
	return s.used[kind]
}

// Flow is the traffic between a host and a namespace: memory is allocated for a flow, and flows
// that wait for memory get it in turn. It must not move.
type Flow struct {
	// Host has a Share of what it uses with all namespaces.
	Host *Share
	// Network has the Share of what all hosts there use whose NQNs are not proven, nil: the NQN of
	// this one is. It is bounded as that of a host is.
	Network *Share
	// Namespace has a Share of what all hosts use with it, nil: the commands concern no namespace.
	Namespace *Share

	queues [poolKinds]flowQueue
}

// holder returns the share of the host or that of the network, the one that has more of a kind of
// pool; nil if there is neither.
func (f *Flow) holder(kind poolKind, urgent bool) *Share {
	if f.Network != nil && f.Network.class(kind, urgent) > f.Host.class(kind, urgent) {
		return f.Network
	}
	return f.Host
}

// poolKind selects the counts and waiters of a Flow: memory of one kind is no substitute for the
// other.
type poolKind uint8

const (
	dataPool poolKind = iota
	stagingPool
	poolKinds
)

// flowQueue is what a flow has of a pool and what it waits for, oldest first.
type flowQueue struct {
	flow    *Flow
	pool    *Pool
	next    *flowQueue // for another pool of the kind
	used    int
	urgent  list.List[Allocation] // of WaitReserve
	waiting list.List[Allocation]
	node    list.Node[flowQueue] // in Pool.waiting, while one of them is not empty
	place   list.Place           // in Pool.flows, likewise
}

func (q *flowQueue) empty() bool { return q.urgent.Empty() && q.waiting.Empty() }

// queue returns the queue of f, of all that have no flow if f is nil.
func (p *Pool) queue(f *Flow) *flowQueue {
	if f == nil {
		f = &p.noFlow
	}
	q := &f.queues[p.kind]
	for q.pool != p {
		if q.pool == nil {
			q.pool, q.flow = p, f
		} else if q.next == nil { // few have more than one, and only of staging memory
			q.next = &flowQueue{pool: p, flow: f}
			q = q.next
		} else {
			q = q.next
		}
	}
	return q
}

// within reports whether the shares allow n bytes more for a flow.
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
	return used+n <= left || used == 0 && (urgent || p.isLarge(n))
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

// left is what stays free after an allocation of n bytes, half as much of the reserve.
func (p *Pool) left(n int, urgent bool) int {
	left := max(p.free(urgent)-n, 0)
	if urgent {
		left /= 2
	}
	return left
}

// isLittle reports whether a flow has little even with n bytes more.
func (p *Pool) isLittle(q *flowQueue, n int) bool {
	return (q.used+n)*littlePart <= p.free(false)-n
}

func (p *Pool) isLarge(n int) bool { return n > p.most/largePart }

// charge adds what an allocation has, times sign, to what its flow has.
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
