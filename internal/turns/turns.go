// Package turns does what peers cause, and takes milliseconds, on a few goroutines, so that no
// network keeps the others waiting.
package turns

import (
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/subnet"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Pool does jobs on a quarter of the processors, on goroutines that exist while there is work. A
// connection has one job at a time here, until it ends, so that admission bounds how many there
// are. Networks (package subnet) take turns, and known ones come first: a flood from elsewhere
// hardly delays them. Of the others the oldest comes first, unless it has waited for mostFair: then
// there are more than can be processed, and the newest comes first. Admission evicts the oldest, so
// that a host would never have its turn otherwise. Threads that serve I/O come before them, unless
// a job has waited for too long. Any goroutine may use it; its zero value has no jobs.
type Pool struct {
	mu      sync.Mutex
	workers int
	waiting map[netip.Addr]*network
	turns   [2]list.List[network] // of known networks, and of others
	taken   int                   // jobs
	since   time.Time             // jobs have waited all the time
}

// othersTurn: so many jobs of known networks are followed by one of others, which a host that does
// not stop to send jobs would keep out otherwise.
const othersTurn = 8

// patience is how long a job may wait, and jobs at all, before they no longer give way to I/O.
// Peers have ten seconds for some jobs in a row.
const patience = 2 * time.Second

// mostFair is how long the oldest job of the networks that are not known may have waited for it to
// be the next one.
const mostFair = patience / 2

// Job is something to do for a peer.
type Job struct {
	From  netip.Addr
	Known bool   // a host that proved who it is has been there, or the peer has proven who it is
	Run   func() // does it
	Done  func() // is called afterwards
	since time.Time
	node  list.Node[Job]
}

// network has the jobs from one network, in their order.
type network struct {
	jobs list.List[Job]
	turn *list.List[network] // that node is in
	node list.Node[network]
}

// MaxWorkers is how many jobs are done at a time. It leaves the reactors most of the processors.
func MaxWorkers() int { return max(runtime.GOMAXPROCS(0)/4, 1) }

// Submit has a job done.
func (p *Pool) Submit(j *Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	from := subnet.Of(j.From)
	a := p.waiting[from]
	j.since = time.Now()
	if len(p.waiting) == 0 {
		p.since = j.since
	}
	if a == nil {
		if p.waiting == nil {
			p.waiting = map[netip.Addr]*network{}
		}
		a = &network{turn: p.turnOf(j)}
		p.waiting[from] = a
		a.turn.Push(a, &a.node)
	}
	a.jobs.Push(j, &j.node)
	if p.workers < MaxWorkers() {
		p.workers++
		go func() { p.work(p.next(), true) }()
	}
}

// turnOf is the list for the network of a job.
func (p *Pool) turnOf(j *Job) *list.List[network] {
	if j.Known {
		return &p.turns[0]
	}
	return &p.turns[1]
}

// Cancel removes a job, which is not called then. It returns false if that has begun.
func (p *Pool) Cancel(j *Job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !j.node.Listed() {
		return false
	}
	from := subnet.Of(j.From)
	a := p.waiting[from]
	if a.jobs.Remove(&j.node); a.jobs.Empty() {
		a.turn.Remove(&a.node)
		delete(p.waiting, from)
	}
	return true
}

// work does jobs, beginning with j, on a thread of low or usual priority, as they need.
func (p *Pool) work(j *Job, low bool) {
	if low {
		runtime.LockOSThread()  // with the goroutine the thread ends, whose priority stays low
		_ = sys.LowerPriority() // where it may not be, jobs are done all the same
	}
	for ; j != nil; j = p.next() {
		if late := p.isLate(j); late == low {
			go p.work(j, !low)
			return
		}
		j.Run()
		j.Done()
	}
}

// isLate reports whether a job does not give way to I/O: it has waited for too long, or more come
// than are done, and most of them end before they are as old.
func (p *Pool) isLate(j *Job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	since := j.since
	if len(p.waiting) > 0 && p.since.Before(since) {
		since = p.since
	}
	return time.Since(since) > patience
}

// next returns the next job, or nil, with which the worker ends.
func (p *Pool) next() *Job {
	p.mu.Lock()
	defer p.mu.Unlock()
	first, second := &p.turns[0], &p.turns[1]
	if p.taken++; p.taken%(othersTurn+1) == 0 {
		first, second = second, first
	}
	a := p.take(first)
	if a == nil {
		a = p.take(second)
	}
	if a == nil {
		p.workers--
		return nil
	}
	j := a.jobs.Pop()
	if a.jobs.Empty() {
		delete(p.waiting, subnet.Of(j.From))
	} else {
		a.turn = p.turnOf(a.jobs.First())
		a.turn.Push(a, &a.node)
	}
	return j
}

// take takes the network out of a list whose turn it is, nil if there is none.
func (p *Pool) take(from *list.List[network]) *network {
	a := from.First()
	if a != nil && from == &p.turns[1] && time.Since(a.jobs.First().since) > mostFair {
		a = from.Last()
	}
	if a != nil {
		from.Remove(&a.node)
	}
	return a
}
