// Package authn processes the messages with which hosts authenticate, by turns, and remembers which
// hosts have authenticated or failed, and from which addresses (ADR 0032). The exchange itself is
// in package auth; package target has the commands that carry it.
//
// It imports no package of the target. Any goroutine may use it, reactors included: nothing blocks.
package authn

import (
	"net/netip"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/turns"
)

// Pool processes the messages of authentication, because their arithmetic takes milliseconds. It
// remembers addresses that have authenticated, and failures. Any goroutine may use it.
type Pool struct {
	turns.Pool

	mu       sync.Mutex
	known    map[netip.Addr]bool // addresses that have authenticated
	failures map[failureKey]failureCount
	Now      func() time.Time // tests set another one
	// see Counts
	successes, refused uint64
}

const (
	// maxKnown is how many addresses, and how many failures, are remembered.
	maxKnown = 4096
	// mostFailures of a host from one address are followed by Pause.
	mostFailures = 10
	// Pause is how long such a host cannot connect from there, and how long a failure counts.
	Pause = time.Minute
)

// NewPool makes a pool that remembers nobody.
func NewPool() *Pool {
	return &Pool{
		known: map[netip.Addr]bool{}, failures: map[failureKey]failureCount{}, Now: time.Now,
	}
}

// failureKey is the key of a count of failures: the name of a host, and the address that used it.
// Failures at one address do not keep the host out at another.
type failureKey struct {
	host string
	from netip.Addr
}

type failureCount struct {
	n    int
	last time.Time
}

// Failed counts a failed authentication.
func (p *Pool) Failed(host string, from netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused++
	k, now := failureKey{host, from}, p.Now()
	f, there := p.failures[k]
	if !there {
		forget(p.failures)
	}
	if now.Sub(f.last) >= Pause {
		f.n = 0
	}
	p.failures[k] = failureCount{f.n + 1, now}
}

// Late counts a host that has not authenticated again in time, which says nothing of its key.
func (p *Pool) Late() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused++
}

// Succeeded forgets failures and remembers the address.
func (p *Pool) Succeeded(host string, from netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.successes++
	delete(p.failures, failureKey{host, from})
	if !p.known[from] {
		forget(p.known)
	}
	p.known[from] = true
}

// IsKnown reports whether a host has authenticated from an address.
func (p *Pool) IsKnown(from netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[from]
}

// Counts is how many exchanges have succeeded, and how many have failed or were not finished.
func (p *Pool) Counts() (succeeded, failed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.successes, p.refused
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

// Paused reports whether a host has failed too often from an address.
func (p *Pool) Paused(host string, from netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.failures[failureKey{host, from}]
	return f.n >= mostFailures && p.Now().Sub(f.last) < Pause
}
