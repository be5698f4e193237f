package target

import (
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/list"
)

// authPool processes the messages of authentication, whose arithmetic takes milliseconds, on a few
// goroutines, which exist while there is work. A queue has one message at a time here, until it
// ends, so that admission bounds how many there are. Addresses take turns, and those from which a
// host has authenticated before come first: a flood from elsewhere hardly delays them. Of the
// others the newest comes first: admission evicts the oldest, so that in a flood of more than can
// be processed a host would never have its turn otherwise. Any goroutine may use it.
type authPool struct {
	mu      sync.Mutex
	workers int
	waiting map[netip.Addr]*authAddress
	turns   [2]list.List[authAddress] // of addresses that have authenticated, and of others
	taken   int                       // jobs
	known   map[netip.Addr]bool       // addresses that have authenticated

	failures map[failureKey]failureCount
	now      func() time.Time // tests set another one
}

const (
	// maxKnown is how many addresses, and how many failures, are remembered.
	maxKnown = 4096
	// mostFailures of a host from one address are followed by failurePause, in which it cannot
	// connect from there. It also is how long a failure counts.
	mostFailures = 10
	failurePause = time.Minute
	// othersTurn: so many jobs of addresses that have authenticated are followed by one of others,
	// which a host that does not stop to authenticate would keep out otherwise.
	othersTurn = 8
)

// authJob is a message to process.
type authJob struct {
	from   netip.Addr
	run    func() // processes it
	done   func() // called afterwards
	failed bool   // the exchange had failed before
	node   list.Node[authJob]
}

// authAddress has the jobs from one address, in their order.
type authAddress struct {
	jobs list.List[authJob]
	turn *list.List[authAddress] // that node is in
	node list.Node[authAddress]
}

func newAuthPool() *authPool {
	return &authPool{
		waiting: map[netip.Addr]*authAddress{}, known: map[netip.Addr]bool{},
		failures: map[failureKey]failureCount{}, now: time.Now,
	}
}

// maxWorkers leaves the reactors most of the processors.
func maxWorkers() int { return max(runtime.GOMAXPROCS(0)/4, 1) }

func (p *authPool) submit(j *authJob) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.waiting[j.from]
	if a == nil {
		a = &authAddress{}
		p.waiting[j.from] = a
		if a.turn = p.turnOf(j.from); a.turn == &p.turns[1] {
			a.turn.PushFirst(a, &a.node)
		} else {
			a.turn.Push(a, &a.node)
		}
	}
	a.jobs.Push(j, &j.node)
	if p.workers < maxWorkers() {
		p.workers++
		go p.work()
	}
}

// turnOf is the list for an address. The caller holds mu.
func (p *authPool) turnOf(addr netip.Addr) *list.List[authAddress] {
	if p.known[addr] {
		return &p.turns[0]
	}
	return &p.turns[1]
}

// cancel removes a job, which is not called then. It returns false if that has begun.
func (p *authPool) cancel(j *authJob) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !j.node.Listed() {
		return false
	}
	a := p.waiting[j.from]
	if a.jobs.Remove(&j.node); a.jobs.Empty() {
		a.turn.Remove(&a.node)
		delete(p.waiting, j.from)
	}
	return true
}

func (p *authPool) work() {
	for j := p.next(); j != nil; j = p.next() {
		j.run()
		j.done()
	}
}

// next returns the next job, or nil, with which the worker ends.
func (p *authPool) next() *authJob {
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
		delete(p.waiting, j.from)
	} else {
		a.turn = p.turnOf(j.from)
		a.turn.Push(a, &a.node)
	}
	return j
}

// failureKey is whose failures are counted: those of a name, and where it was used, so that nobody
// can keep a host out from elsewhere.
type failureKey struct {
	host string
	from netip.Addr
}

type failureCount struct {
	n    int
	last time.Time
}

// failed counts a failed authentication.
func (p *authPool) failed(host string, from netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k, now := failureKey{host, from}, p.now()
	f, there := p.failures[k]
	if !there {
		forget(p.failures)
	}
	if now.Sub(f.last) >= failurePause {
		f.n = 0
	}
	p.failures[k] = failureCount{f.n + 1, now}
}

// succeeded forgets failures and remembers the address.
func (p *authPool) succeeded(host string, from netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.failures, failureKey{host, from})
	if !p.known[from] {
		forget(p.known)
	}
	p.known[from] = true
}

// isKnown says that a host has authenticated from an address.
func (p *authPool) isKnown(from netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[from]
}

// forget makes room for another entry.
func forget[K comparable, V any](m map[K]V) {
	for k := range m {
		if len(m) < maxKnown {
			return
		}
		delete(m, k)
	}
}

// paused says that a host has failed too often from an address.
func (p *authPool) paused(host string, from netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.failures[failureKey{host, from}]
	return f.n >= mostFailures && p.now().Sub(f.last) < failurePause
}
