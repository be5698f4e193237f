package tcp

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Transport makes NVMe/TCP listeners and groups.
type Transport struct {
	cfg Config
	log *ratelog.Logger

	mu        sync.Mutex
	closed    bool
	listeners map[*listener]struct{}
	total     int
	memory    int64 // of all queues in bytes, see Config.QueueMemory
	perHost   map[netip.Addr]int
}

// New makes a transport. The configuration must be valid; see Config.Validate.
func New(cfg Config) *Transport {
	cfg.SetDefaults()
	return &Transport{
		cfg: cfg, log: ratelog.New(cfg.Log),
		listeners: make(map[*listener]struct{}), perHost: make(map[netip.Addr]int),
	}
}

// Type is nvme.TransportTCP.
func (t *Transport) Type() nvme.TransportType { return nvme.TransportTCP }

// Close closes the listeners.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	var list []*listener
	for l := range t.listeners {
		list = append(list, l)
	}
	t.mu.Unlock()
	var errs []error
	for _, l := range list {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Connections is the number of open connections. Any goroutine may call it.
func (t *Transport) Connections() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}

// admit counts a connection, or says why it may not be.
func (t *Transport) admit(c *conn) error {
	addr := c.info.Remote.Addr()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.total >= t.cfg.MaxConnections:
		return fmt.Errorf("%d connections are open, the limit", t.total)
	case t.perHost[addr] >= t.cfg.MaxConnectionsPerHost:
		return fmt.Errorf("%d connections from this address are open, the limit", t.perHost[addr])
	}
	if err := t.take(c, queueBytes); err != nil {
		return err
	}
	t.total++
	t.perHost[addr]++
	return nil
}

// What a queue is taken to need in bytes, when it is accepted and for each command that it may have
// outstanding: rather too much.
const (
	queueBytes   = 16 << 10 // mostly tightSize
	commandBytes = 768      // a request, the handler's state of it, and their lists of segments
)

// take counts n bytes for the queue of c if they are there, with mu held.
func (t *Transport) take(c *conn, n int64) error {
	if t.memory+n > t.cfg.QueueMemory {
		return fmt.Errorf("%d queues have %d KiB of memory and this one wants %d, the limit is %d",
			t.total, t.memory>>10, n>>10, t.cfg.QueueMemory>>10)
	}
	t.memory += n
	c.memory += n
	return nil
}

// deepen counts the memory of depth commands for the queue of c, or says why it cannot have them.
func (t *Transport) deepen(c *conn, depth int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.take(c, int64(depth)*commandBytes)
}

// giveBack returns the memory that was counted for c.
func (t *Transport) giveBack(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.memory -= c.memory
	c.memory = 0
}

// leave undoes admit, but for the memory.
func (t *Transport) leave(addr netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total--
	if t.perHost[addr]--; t.perHost[addr] == 0 {
		delete(t.perHost, addr)
	}
}

// Usage implements fabric.UsageReporter.
func (t *Transport) Usage() fabric.Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fabric.Usage{Connections: t.total, Memory: t.memory, MemoryLimit: t.cfg.QueueMemory}
}

var _ fabric.Transport = (*Transport)(nil)
