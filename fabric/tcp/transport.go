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
	perHost   map[netip.Addr]int
}

// New makes a transport. The configuration must be valid; see Config.Validate.
func New(cfg Config) *Transport {
	cfg.setDefaults()
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

// admit counts a connection from addr, or says why it may not be.
func (t *Transport) admit(addr netip.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.total >= t.cfg.MaxConnections:
		return fmt.Errorf("%d connections are open, the limit", t.total)
	case t.perHost[addr] >= t.cfg.MaxConnectionsPerHost:
		return fmt.Errorf("%d connections from this address are open, the limit", t.perHost[addr])
	}
	t.total++
	t.perHost[addr]++
	return nil
}

// leave undoes admit.
func (t *Transport) leave(addr netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total--
	if t.perHost[addr]--; t.perHost[addr] == 0 {
		delete(t.perHost, addr)
	}
}

var _ fabric.Transport = (*Transport)(nil)
