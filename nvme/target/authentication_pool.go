package target

import (
	"net/netip"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/turns"
)

// authPool processes the messages of authentication, whose arithmetic takes milliseconds, and
// remembers who has authenticated and who has failed. Any goroutine may use it.
type authPool struct {
	turns.Pool

	mu       sync.Mutex
	known    map[netip.Addr]bool // addresses that have authenticated
	failures map[failureKey]failureCount
	now      func() time.Time // tests set another one
	// see Target.Authentications
	successes, refused uint64
}

const (
	// maxKnown is how many addresses, and how many failures, are remembered.
	maxKnown = 4096
	// mostFailures of a host from one address are followed by failurePause, in which it cannot
	// connect from there. It also is how long a failure counts.
	mostFailures = 10
	failurePause = time.Minute
)

// authJob is a message to process.
type authJob struct {
	turns.Job
	failed bool // the exchange had failed before
}

func newAuthPool() *authPool {
	return &authPool{
		known: map[netip.Addr]bool{}, failures: map[failureKey]failureCount{}, now: time.Now,
	}
}

func (p *authPool) submit(j *authJob) {
	j.Known = p.isKnown(j.From)
	p.Submit(&j.Job)
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
	p.refused++
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

// late counts a host that has not authenticated again in time, which says nothing of its key.
func (p *authPool) late() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused++
}

// succeeded forgets failures and remembers the address.
func (p *authPool) succeeded(host string, from netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.successes++
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
