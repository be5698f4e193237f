// Package authn has the proofs of identity of hosts (ADR 0032): policies, exchanges of messages by
// turns, failures and their addresses, generated PSKs, and the interval after which a host proves
// its identity again. The arithmetic is in package auth. Package target has the commands that carry
// messages, and the queues that serve nothing else before.
//
// It imports no package of the target. Any goroutine may use Hosts, reactors included: nothing
// blocks.
package authn

import (
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// Hosts has the policies of hosts, and their proofs and failures until now. It processes messages
// of authentication by turns, because their arithmetic takes milliseconds. Any goroutine may use
// it.
type Hosts struct {
	turns.Pool

	policies atomic.Pointer[map[string]*auth.Policy] // by NQN; immutable

	mu       sync.Mutex
	known    map[netip.Addr]bool // addresses that have authenticated
	failures map[failureKey]failureCount
	psks     map[string][]*psk // by NQN, the oldest first
	Now      func() time.Time  // tests set another one
	// see Counts
	successes, refused uint64
}

const (
	// maxKnown is the number of addresses, and of failures, that are remembered.
	maxKnown = 4096
	// mostFailures of a host from one address are followed by Pause.
	mostFailures = 10
	// Pause is how long such a host cannot connect from there, and how long a failure counts.
	Pause = time.Minute
)

// NewHosts makes Hosts without policies, which remember nothing yet.
func NewHosts() *Hosts {
	h := &Hosts{
		known: map[netip.Addr]bool{}, failures: map[failureKey]failureCount{},
		psks: map[string][]*psk{}, Now: time.Now,
	}
	h.policies.Store(&map[string]*auth.Policy{})
	return h
}

// Policy returns the current policy of a host, nil if it has no key.
func (h *Hosts) Policy(nqn string) *auth.Policy { return (*h.policies.Load())[nqn] }

// SetPolicy sets the policy of a host, and returns the one before.
func (h *Hosts) SetPolicy(nqn string, p *auth.Policy) (before *auth.Policy) {
	h.mu.Lock()
	defer h.mu.Unlock()
	policies := maps.Clone(*h.policies.Load())
	before = policies[nqn]
	if policies[nqn] = p; p == nil {
		delete(policies, nqn)
	}
	h.policies.Store(&policies)
	return before
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
func (h *Hosts) Failed(host string, from netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused++
	k, now := failureKey{host, from}, h.Now()
	f, there := h.failures[k]
	if !there {
		forget(h.failures)
	}
	if now.Sub(f.last) >= Pause {
		f.n = 0
	}
	h.failures[k] = failureCount{f.n + 1, now}
}

// Late counts a host that has not authenticated again in time, which says nothing of its key.
func (h *Hosts) Late() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused++
}

// Succeeded forgets failures and remembers the address.
func (h *Hosts) Succeeded(host string, from netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.successes++
	delete(h.failures, failureKey{host, from})
	if !h.known[from] {
		forget(h.known)
	}
	h.known[from] = true
}

// IsKnown reports whether a host has authenticated from an address.
func (h *Hosts) IsKnown(from netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known[from]
}

// Counts returns how many exchanges have succeeded, and how many failed or did not finish.
func (h *Hosts) Counts() (succeeded, failed uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.successes, h.refused
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
func (h *Hosts) Paused(host string, from netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.failures[failureKey{host, from}]
	return f.n >= mostFailures && h.Now().Sub(f.last) < Pause
}
