package wire

import (
	"net/netip"
	"time"
)

// MemoryOptions are the faults of a memory network. The zero value has none. The probabilities are
// per packet, from 0 to 1.
type MemoryOptions struct {
	Loss, Duplicate, Corrupt float64
	// Reorder is the probability that a packet arrives after the next one to its socket.
	Reorder float64
	// Delay is the time of every packet on the way.
	Delay time.Duration
	// Seed makes a run repeatable.
	Seed uint64
	// Manual makes Now stand still but for Advance. Otherwise it is the real time.
	Manual bool
	// MTU of the links; 0 means 9,000.
	MTU int
}

// A Memory is an IP network in memory.
type Memory struct{ opts MemoryOptions }

// NewMemory makes a network without hosts.
func NewMemory(opts MemoryOptions) *Memory { return &Memory{opts} }

// Host adds a host. Its Network panics if a host of the network has one of the addresses already.
func (m *Memory) Host(name string, addrs ...netip.Addr) Network { panic("not yet") }

// SetFaults replaces the faults from now on; Manual, Seed and MTU do not change.
func (m *Memory) SetFaults(opts MemoryOptions) {}

// Advance moves the manual clock, packet by packet and timer by timer, and wakes the Conns that
// have something to do.
func (m *Memory) Advance(d time.Duration) {}

// Next returns the time until the next arrival or timer, and false if there is none.
func (m *Memory) Next() (time.Duration, bool) { return 0, false }
