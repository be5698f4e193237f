package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Transport makes NVMe/RDMA listeners and groups.
type Transport struct {
	cfg Config
	log *ratelog.Logger

	mu      sync.Mutex
	closed  bool
	cm      verbs.CM // made by the first Listen
	cmDone  chan struct{}
	byID    map[verbs.ID]*listener
	open    map[*listener]struct{}
	waiting map[*conn]struct{} // connections that no group has adopted
	total   int
	memory  int64 // of their queues, as conn.memory counts it, and of shared receives
	perHost map[netip.Addr]int
	devices map[verbs.Device]*device
	groups  map[*group]struct{}
	// unshared are the devices whose queues have receives of their own although SharedReceives is
	// set.
	unshared map[verbs.Device]struct{}
}

// New makes a transport. The configuration must be valid; see Config.Validate.
func New(cfg Config) *Transport {
	cfg.SetDefaults()
	return &Transport{
		cfg: cfg, log: ratelog.New(cfg.Log),
		byID: make(map[verbs.ID]*listener), open: make(map[*listener]struct{}),
		waiting: make(map[*conn]struct{}),
		perHost: make(map[netip.Addr]int), devices: make(map[verbs.Device]*device),
		groups: make(map[*group]struct{}), unshared: make(map[verbs.Device]struct{}),
	}
}

// Type is nvme.TransportRDMA.
func (t *Transport) Type() nvme.TransportType { return nvme.TransportRDMA }

// Connections is the number of connections, those being made or ended included. Any goroutine may
// call it.
func (t *Transport) Connections() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}

// NewGroup makes the group of one reactor.
func (t *Transport) NewGroup(cfg fabric.GroupConfig) (fabric.Group, error) {
	if cfg.Loop == nil || cfg.Handler == nil || cfg.Memory == nil {
		return nil, errors.New("rdma: a group needs a loop, a handler and memory")
	}
	g := newGroup(t, cfg)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.groups[g] = struct{}{}
	return g, nil
}

// Close closes the listeners, refuses connections that no group has adopted, and ends the
// communication manager.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	var listeners []*listener
	for l := range t.open {
		listeners = append(listeners, l)
	}
	var conns []*conn
	for c := range t.waiting {
		conns = append(conns, c)
	}
	cm := t.cm
	t.mu.Unlock()

	var errs []error
	for _, l := range listeners {
		errs = append(errs, l.Close())
	}
	for _, c := range conns {
		errs = append(errs, c.Close())
	}
	if cm != nil {
		if err := cm.Close(); err != nil {
			return errors.Join(append(errs,
				fmt.Errorf("rdma: close the communication manager: %w", err))...)
		}
		<-t.cmDone
	}
	return errors.Join(errs...)
}

// startCM opens the communication manager if that has not been done. The lock is held.
func (t *Transport) startCM() error {
	if t.closed {
		return errors.New("the transport is closed")
	}
	if t.cm != nil {
		return nil
	}
	if err := t.cfg.Validate(); err != nil {
		return err
	}
	cm, err := t.cfg.Provider.NewCM()
	if err != nil {
		return err
	}
	t.cm, t.cmDone = cm, make(chan struct{})
	go t.events(cm)
	return nil
}

// events takes the events of the communication manager to whom they concern, until it is closed.
func (t *Transport) events(cm verbs.CM) {
	defer close(t.cmDone)
	for failed := false; ; {
		ev, err := cm.Next()
		switch {
		case errors.Is(err, verbs.ErrClosed):
			return
		case err == nil:
			failed = false
			t.event(&ev)
			continue
		case !failed:
			t.cfg.Log.Error("RDMA communication manager fails, trying again", "error", err)
		}
		failed = true
		time.Sleep(100 * time.Millisecond)
	}
}

func (t *Transport) event(ev *verbs.Event) {
	if ev.Type == verbs.EventConnectRequest {
		t.request(ev)
		return
	}
	if ev.Type == verbs.EventDeviceRemoval {
		if dev := ev.ID.Device(); dev != nil {
			t.lost(dev)
		}
	}
	t.mu.Lock()
	l := t.byID[ev.ID]
	t.mu.Unlock()
	if l != nil {
		l.event(ev)
		return
	}
	if c, ok := ev.ID.Context().(*conn); ok {
		c.event(ev)
	}
}

// admit counts a connection from addr, or says why it may not be.
func (t *Transport) admit(c *conn) error {
	addr := c.info.Remote.Addr()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return errors.New("the transport is closing")
	case t.total >= t.cfg.MaxQueues:
		return fmt.Errorf("%d queues are connected, the limit", t.total)
	case t.perHost[addr] >= t.cfg.MaxQueuesPerHost:
		return fmt.Errorf("%d queues from this address are connected, the limit", t.perHost[addr])
	}
	if t.memory+c.memory() > t.cfg.QueueMemory {
		return fmt.Errorf("%d queues have %d KiB of memory and this one wants %d, the limit is %d",
			t.total, t.memory>>10, c.memory()>>10, t.cfg.QueueMemory>>10)
	}
	t.total++
	t.memory += c.memory()
	t.perHost[addr]++
	t.waiting[c] = struct{}{}
	return nil
}

// charge counts memory of shared receives, or says why there may not be more; uncharge undoes it.
func (t *Transport) charge(n int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.memory+int64(n) > t.cfg.QueueMemory {
		return fmt.Errorf("%d queues have %d KiB of memory and %d more are wanted, the limit is %d",
			t.total, t.memory>>10, n>>10, t.cfg.QueueMemory>>10)
	}
	t.memory += int64(n)
	return nil
}

func (t *Transport) uncharge(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.memory -= int64(n)
}

// leave undoes admit.
func (t *Transport) leave(c *conn) {
	addr := c.info.Remote.Addr()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total--
	t.memory -= c.memory()
	delete(t.waiting, c)
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
