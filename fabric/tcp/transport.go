package tcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Transport makes NVMe/TCP listeners and groups.
type Transport struct {
	cfg Config
	log limitedLog

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
		cfg: cfg, log: limitedLog{log: cfg.Log},
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

// limitedLog passes on a few lines a second, so that peers cannot fill the disk with refusals.
type limitedLog struct {
	log *slog.Logger

	mu      sync.Mutex
	second  int64
	lines   int
	dropped int
}

const linesPerSecond = 10

// warn is print at the level of warnings.
func (l *limitedLog) warn(msg string, args ...any) { l.print(slog.LevelWarn, msg, args...) }

// print logs unless too much was logged in this second. Any goroutine may call it; never per I/O.
func (l *limitedLog) print(level slog.Level, msg string, args ...any) {
	now := time.Now().Unix()
	l.mu.Lock()
	dropped := 0
	if now != l.second {
		l.second, l.lines, dropped, l.dropped = now, 0, l.dropped, 0
	}
	l.lines++
	if l.lines > linesPerSecond {
		l.dropped++
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	if dropped > 0 {
		args = append(args, "lines dropped before", dropped)
	}
	l.log.Log(context.Background(), level, msg, args...)
}

var _ fabric.Transport = (*Transport)(nil)
