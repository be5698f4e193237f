// Package turns does long work for peers on a few goroutines, which hosts and networks share
// fairly.
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
// command, or a connection without one, has one job at a time, so admission bounds the jobs. Owners
// (package subnet) take turns, known ones first: a flood from elsewhere hardly delays them. Of the
// others the oldest comes first, unless it has waited for longer than mostFair. Then too many
// arrive, and the newest comes first: admission evicts the oldest, which would never have its turn.
// Any goroutine may use it; its zero value has no jobs.
type Pool struct {
	// Prompt jobs have the priority of I/O. Others yield to I/O until one has waited for too long.
	Prompt bool

	mu      sync.Mutex
	workers int
	waiting map[subnet.Owner]*owner
	turns   [2]list.List[owner] // of known owners, and of others
	taken   int                 // jobs
	since   time.Time           // jobs have waited without interruption since then
}

// othersTurn is the number of jobs of known owners that are followed by one of others. Otherwise
// a host that never stops sending jobs would keep them out.
const othersTurn = 8

// patience is the time for which a job, or any jobs at all, may wait before they no longer give way
// to I/O. Peers have ten seconds for some jobs in a row.
const patience = 2 * time.Second

// mostFair is the longest wait with which the oldest job of an unknown owner is still the next one.
const mostFair = patience / 2

// Job is work for a peer.
type Job struct {
	Owner subnet.Owner
	Known bool   // the owner, or a host from its network, has proven its identity
	Run   func() // does it
	Done  func() // is called afterwards
	since time.Time
	node  list.Node[Job]
}

// From makes the network of an address the owner.
func (j *Job) From(addr netip.Addr) { j.Owner = subnet.Owner{Network: subnet.Of(addr)} }

// owner has the jobs of one owner, in order.
type owner struct {
	jobs list.List[Job]
	turn *list.List[owner] // list that node is in
	node list.Node[owner]
}

// MaxWorkers returns the most concurrent jobs, which leave most processors to the reactors.
func MaxWorkers() int { return max(runtime.GOMAXPROCS(0)/4, 1) }

// Submit queues a job.
func (p *Pool) Submit(j *Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.waiting[j.Owner]
	j.since = time.Now()
	if len(p.waiting) == 0 {
		p.since = j.since
	}
	if a == nil {
		if p.waiting == nil {
			p.waiting = map[subnet.Owner]*owner{}
		}
		a = &owner{turn: p.turnOf(j)}
		p.waiting[j.Owner] = a
		a.turn.Push(a, &a.node)
	}
	a.jobs.Push(j, &j.node)
	if p.workers < MaxWorkers() {
		p.workers++
		go func() { p.work(p.next(), !p.Prompt) }()
	}
}

func (p *Pool) turnOf(j *Job) *list.List[owner] {
	if j.Known {
		return &p.turns[0]
	}
	return &p.turns[1]
}

// Cancel removes a job, which is then not called. It returns false if the job has begun.
func (p *Pool) Cancel(j *Job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !j.node.Listed() {
		return false
	}
	a := p.waiting[j.Owner]
	if a.jobs.Remove(&j.node); a.jobs.Empty() {
		a.turn.Remove(&a.node)
		delete(p.waiting, j.Owner)
	}
	return true
}

// work does jobs, beginning with j, on a thread of low or normal priority, as the jobs require.
func (p *Pool) work(j *Job, low bool) {
	if low {
		runtime.LockOSThread()  // the thread, with its low priority, ends with the goroutine
		_ = sys.LowerPriority() // if it fails, the jobs are still done
	}
	for ; j != nil; j = p.next() {
		if usual := p.Prompt || p.isLate(j); usual == low {
			go p.work(j, !low)
			return
		}
		j.Run()
		j.Done()
	}
}

// isLate reports whether a job no longer gives way to I/O. Either it has waited for too long, or
// jobs have been waiting without interruption for that long, because more arrive than are done.
func (p *Pool) isLate(j *Job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	since := j.since
	if len(p.waiting) > 0 && p.since.Before(since) {
		since = p.since
	}
	return time.Since(since) > patience
}

// next returns the next job, or nil to end the worker.
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
		delete(p.waiting, j.Owner)
	} else {
		a.turn = p.turnOf(a.jobs.First())
		a.turn.Push(a, &a.node)
	}
	return j
}

// take removes and returns the next owner of a list, nil if there is none.
func (p *Pool) take(from *list.List[owner]) *owner {
	a := from.First()
	if a != nil && from == &p.turns[1] && time.Since(a.jobs.First().since) > mostFair {
		a = from.Last()
	}
	if a != nil {
		from.Remove(&a.node)
	}
	return a
}
