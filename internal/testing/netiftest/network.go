// Package netiftest has a machine with network addresses that a test sets.
package netiftest

import (
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/netif"
)

// Network is the network of a machine, see listeners.Network. A test sets its fields before others
// use it. Any goroutine may call its methods.
type Network struct {
	RDMA     map[string][]string // as in netif.State
	Err      error               // of Read
	Waiting  []netif.Handshake
	Unrouted netip.Addr // the only address without a route

	mu           sync.Mutex
	addresses    []netif.Address
	reads, looks int
	changed      func()
}

// Handshakes returns Waiting.
func (n *Network) Handshakes() ([]netif.Handshake, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looks++
	return n.Waiting, nil
}

// Route returns eth0, except for Unrouted.
func (n *Network) Route(_, to netip.Addr) (string, error) {
	if to == n.Unrouted {
		return "", unix.ENETUNREACH
	}
	return "eth0", nil
}

// Read returns the addresses that Set has set.
func (n *Network) Read(...string) (netif.State, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reads++
	return netif.State{Addresses: n.addresses, RDMA: n.RDMA}, n.Err
}

// Watch makes Set call changed.
func (n *Network) Watch(changed func()) (stop func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed = changed
	return func() {}, nil
}

// Reads returns the number of calls of Read.
func (n *Network) Reads() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reads
}

// Looks returns the number of calls of Handshakes.
func (n *Network) Looks() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.looks
}

// Set gives the machine the addresses of a list, see Addresses. To listen at them, a test uses
// addresses of 127.0.0.0/8: Linux has all of these.
func (n *Network) Set(list ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addresses = Addresses(list...)
	if n.changed != nil {
		n.changed()
	}
}

// Addresses returns the addresses of a list such as "eth0 127.0.9.1". A third word means that the
// interface is switched off.
func Addresses(list ...string) (out []netif.Address) {
	for _, a := range list {
		words := strings.Fields(a)
		out = append(out, netif.Address{
			Addr: netip.MustParseAddr(words[1]), Interface: words[0], Up: len(words) == 2,
		})
	}
	return out
}
