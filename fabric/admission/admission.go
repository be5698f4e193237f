// Package admission counts the connections of a transport, in total and by host address, and the
// memory of their queues, and refuses what exceeds the limits.
package admission

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/nvmf-target/nvmf-target/fabric"
)

// Limits are what a Counter holds a transport to.
type Limits struct {
	// Connections and PerHost limit the connections in total and from one address.
	Connections, PerHost int
	// Memory limits the memory of all queues, in bytes.
	Memory int64
}

// Counter counts for one transport. Any goroutine may use it.
type Counter struct {
	limits Limits

	mu      sync.Mutex
	closed  bool
	total   int
	memory  int64
	perHost map[netip.Addr]int
}

// ErrClosed is returned by Admit after Close.
var ErrClosed = errors.New("the transport is closing")

// New makes an empty Counter.
func New(l Limits) *Counter { return &Counter{limits: l, perHost: make(map[netip.Addr]int)} }

// Admit counts a connection from host whose queue needs so many bytes of memory. The error says
// which limit it would exceed; then nothing is counted. Leave and Uncharge undo the two parts.
func (c *Counter) Admit(host netip.Addr, memory int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return ErrClosed
	case c.total >= c.limits.Connections:
		return fmt.Errorf("%d connections are open, the limit", c.total)
	case c.perHost[host] >= c.limits.PerHost:
		return fmt.Errorf("%d connections from this address are open, the limit", c.perHost[host])
	}
	if err := c.charge(memory); err != nil {
		return err
	}
	c.total++
	c.perHost[host]++
	return nil
}

// Leave removes a connection from host. Its memory stays counted until Uncharge.
func (c *Counter) Leave(host netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	if c.perHost[host]--; c.perHost[host] == 0 {
		delete(c.perHost, host)
	}
}

// Charge adds n bytes of memory of queues, maybe negative. After an error nothing was added.
func (c *Counter) Charge(n int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.charge(n)
}

// charge is Charge with mu held.
func (c *Counter) charge(n int64) error {
	if c.memory+n > c.limits.Memory {
		return fmt.Errorf("%d queues have %d KiB of memory and this one wants %d, the limit is %d",
			c.total, c.memory>>10, n>>10, c.limits.Memory>>10)
	}
	c.memory += n
	return nil
}

// Uncharge removes n bytes of memory of queues.
func (c *Counter) Uncharge(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.memory -= n
}

// Usage returns the current counts.
func (c *Counter) Usage() fabric.Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fabric.Usage{Connections: c.total, Memory: c.memory, MemoryLimit: c.limits.Memory}
}

// Close makes Admit refuse every connection from now on.
func (c *Counter) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}
