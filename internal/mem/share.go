package mem

import "github.com/nvmf-target/nvmf-target/internal/list"

// How the memory of a pool is shared out (docs/adr/0021): a host may have up to hostFactor times
// as many bytes as stay free, and a namespace, of all hosts, up to namespaceFactor times. So
// whatever one host or one device holds, and for however long, memory stays free: a host that is
// alone may have two thirds, each of two hosts two fifths, and one namespace half. Twice as much is
// allowed of the reserve, and to a host for a flow that has little, one part in littlePart of what
// stays free; the namespace may then have any: a host reaches a namespace of which others hold
// much, and one whose commands all hang in one namespace reaches others.
const (
	hostFactor      = 2
	namespaceFactor = 1
	littlePart      = 8
	// largePart: what needs more of the pool is allowed to a host that has nothing.
	largePart = 4
)

// Share counts what a host or a namespace has of the pools of one reactor. The zero Share has
// nothing. Its reactor uses it.
type Share struct {
	// Limit is the most bytes that it may have of one pool, whatever is free. 0: as above.
	Limit int
	used  [poolKinds]int
}

// Used returns the bytes of data memory that it has.
func (s *Share) Used() int { return s.used[dataPool] }

// Flow is the traffic between a host and a namespace: memory is allocated for a flow, and flows
// that wait for memory get it in turn. It must not move.
type Flow struct {
	// Host has a Share of what it uses with all namespaces.
	Host *Share
	// Namespace has a Share of what all hosts use with it, nil: the commands concern no namespace.
	Namespace *Share

	queues [poolKinds]flowQueue
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
	used    int
	urgent  list.List[Allocation] // of WaitReserve
	waiting list.List[Allocation]
	node    list.Node[flowQueue] // in Pool.waiting, while one of them is not empty
}

func (q *flowQueue) empty() bool { return q.urgent.Empty() && q.waiting.Empty() }

// queue returns the queue of f, of all that have no flow if f is nil.
func (p *Pool) queue(f *Flow) *flowQueue {
	if f == nil {
		f = &p.noFlow
	}
	q := &f.queues[p.kind]
	q.flow = f
	return q
}

// within says whether the shares allow n bytes more for a flow.
func (p *Pool) within(q *flowQueue, n int, urgent bool) bool {
	ns := q.flow.Namespace
	if !p.hostWithin(q, n, urgent) {
		return false
	}
	return ns == nil || p.isLittle(q, n) || p.isLarge(n) && ns.used[p.kind] == 0 ||
		ns.used[p.kind]+n <= namespaceFactor*p.left(n, urgent)
}

// hostWithin is within for the share of the host alone.
func (p *Pool) hostWithin(q *flowQueue, n int, urgent bool) bool {
	h := q.flow.Host
	if h == nil {
		return true
	}
	used := h.used[p.kind]
	if h.Limit > 0 {
		return used+n <= h.Limit
	}
	left := hostFactor * p.left(n, urgent)
	if p.isLittle(q, n) {
		left *= 2
	}
	return used+n <= left || p.isLarge(n) && used == 0
}

// left is what stays free after an allocation of n bytes, twice as much of the reserve.
func (p *Pool) left(n int, urgent bool) int {
	left := max(p.free(urgent)-n, 0)
	if urgent {
		left *= 2
	}
	return left
}

// isLittle says whether a flow has little even with n bytes more.
func (p *Pool) isLittle(q *flowQueue, n int) bool {
	return (q.used+n)*littlePart <= p.free(false)-n
}

func (p *Pool) isLarge(n int) bool { return n > p.most/largePart }

// charge adds n bytes, maybe negative, to what a flow has.
func (p *Pool) charge(q *flowQueue, n int) {
	q.used += n
	if h := q.flow.Host; h != nil {
		h.used[p.kind] += n
	}
	if ns := q.flow.Namespace; ns != nil {
		ns.used[p.kind] += n
	}
}
