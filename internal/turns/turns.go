// Package turns does what peers cause, and takes milliseconds, on a few goroutines, so that no
// address keeps the others waiting.
package turns

import (
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/list"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// Pool does jobs on a quarter of the processors, on goroutines that exist while there is work. A
// connection has one job at a time here, until it ends, so that admission bounds how many there
// are. Addresses take turns, and known ones come first: a flood from elsewhere hardly delays them.
// Of the others the newest comes first: admission evicts the oldest, so that in a flood of more
// than can be processed a host would never have its turn otherwise. Threads that serve I/O come
// before them, unless a job has waited for too long. Any goroutine may use it; its zero value has
// no jobs.
type Pool struct {
	mu      sync.Mutex
	workers int
	waiting map[netip.Addr]*address
	turns   [2]list.List[address] // of known addresses, and of others
	taken   int                   // jobs
}

// othersTurn: so many jobs of known addresses are followed by one of others, which a host that does
// not stop to send jobs would keep out otherwise.
const othersTurn = 8

// patience is how long a job may wait before it no longer gives way to I/O. Peers have ten seconds
// for some jobs in a row.
const patience = 2 * time.Second

// Job is something to do for an address.
type Job struct {
	From  netip.Addr
	Known bool   // a host that proved who it is has been there
	Run   func() // does it
	Done  func() // is called afterwards
	since time.Time
	node  list.Node[Job]
}

// address has the jobs from one address, in their order.
type address struct {
	jobs list.List[Job]
	turn *list.List[address] // that node is in
	node list.Node[address]
}

// MaxWorkers is how many jobs are done at a time. It leaves the reactors most of the processors.
func MaxWorkers() int { return max(runtime.GOMAXPROCS(0)/4, 1) }

// Submit has a job done.
func (p *Pool) Submit(j *Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.waiting[j.From]
	if a == nil {
		if p.waiting == nil {
			p.waiting = map[netip.Addr]*address{}
		}
		a = &address{}
		p.waiting[j.From] = a
		if a.turn = p.turnOf(j); j.Known {
			a.turn.Push(a, &a.node)
		} else {
			a.turn.PushFirst(a, &a.node)
		}
	}
	j.since = time.Now()
	a.jobs.Push(j, &j.node)
	if p.workers < MaxWorkers() {
		p.workers++
		go func() { p.work(p.next(), true) }()
	}
}

// turnOf is the list for the address of a job.
func (p *Pool) turnOf(j *Job) *list.List[address] {
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
	a := p.waiting[j.From]
	if a.jobs.Remove(&j.node); a.jobs.Empty() {
		a.turn.Remove(&a.node)
		delete(p.waiting, j.From)
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
		if late := time.Since(j.since) > patience; late == low {
			go p.work(j, !low)
			return
		}
		j.Run()
		j.Done()
	}
}

// next returns the next job, or nil, with which the worker ends.
func (p *Pool) next() *Job {
	p.mu.Lock()
	defer p.mu.Unlock()
	first, second := &p.turns[0], &p.turns[1]
	if p.taken++; p.taken%(othersTurn+1) == 0 {
		first, second = second, first
	}
	a := first.Pop()
	if a == nil {
		a = second.Pop()
	}
	if a == nil {
		p.workers--
		return nil
	}
	j := a.jobs.Pop()
	if a.jobs.Empty() {
		delete(p.waiting, j.From)
	} else {
		a.turn = p.turnOf(a.jobs.First())
		a.turn.Push(a, &a.node)
	}
	return j
}
