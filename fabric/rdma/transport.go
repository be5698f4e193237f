package rdma

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/admission"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Transport makes NVMe/RDMA listeners and groups.
type Transport struct {
	cfg       Config
	next      atomic.Pointer[Config] // of new connections, see Update
	deepest   atomic.Int64           // the largest MaxDepth so far
	log       *ratelog.Logger        // for events that peers can cause; others go to cfg.Log
	admission *admission.Counter
	// quarantined counts queues; see quarantine.go.
	quarantined atomic.Int64

	mu        sync.Mutex
	closed    bool
	cms       map[fabric.Stack]*manager // made by Listen
	listening map[verbs.ID]*listener
	listeners map[*listener]struct{}
	devices   map[verbs.Device]*device
	groups    map[*group]struct{}
	// noSRQ has the devices without a shared receive queue although SRQSize is set.
	noSRQ map[verbs.Device]struct{}
}

// manager is the open communication manager of a stack.
type manager struct {
	verbs.CM
	done chan struct{} // closed when no more events come
}

// New makes a transport.
func New(cfg Config) *Transport {
	cfg.SetDefaults()
	if cfg.TOS == nil {
		cfg.TOS = func(uint16) uint8 { return 0 }
	}
	if cfg.Stack == nil {
		cfg.Stack = func(uint16) fabric.Stack { return fabric.AnyStack }
	}
	if cfg.Awaited == nil {
		cfg.Awaited = func(uint16) bool { return false }
	}
	if cfg.Memlock == nil {
		cfg.Memlock = func() error { return nil }
	}
	if cfg.Lost == nil {
		cfg.Lost = func(uint16) {}
	}
	t := &Transport{
		cfg: cfg, log: ratelog.New(cfg.Log), admission: admission.New(cfg.Limits),
		listening: make(map[verbs.ID]*listener), listeners: make(map[*listener]struct{}),
		devices: make(map[verbs.Device]*device), groups: make(map[*group]struct{}),
		noSRQ: make(map[verbs.Device]struct{}), cms: make(map[fabric.Stack]*manager),
	}
	t.next.Store(&cfg)
	t.deepest.Store(int64(cfg.MaxDepth))
	return t
}

// Update changes MaxDepth and Limits to the values of a valid configuration. Existing connections
// keep their resources, and their controllers the depth announced to their hosts. One call at a
// time, on any goroutine.
func (t *Transport) Update(cfg Config) {
	cfg.SetDefaults()
	t.deepest.Store(max(t.deepest.Load(), int64(cfg.MaxDepth)))
	t.next.Store(&cfg)
	t.admission.SetLimits(cfg.Limits)
}

func (t *Transport) Type() nvme.TransportType { return nvme.TransportRDMA }

func (t *Transport) Shares() []fabric.Share { return t.admission.Shares() }

// Usage implements fabric.Transport. It includes connections that are being made or ended.
func (t *Transport) Usage() fabric.Usage {
	u := t.admission.Usage()
	u.Quarantined = int(t.quarantined.Load())
	return u
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

// Close closes the listeners and the communication managers. The groups must be closed first.
func (t *Transport) Close() error {
	t.admission.Close()
	t.mu.Lock()
	t.closed = true
	listeners := slices.Collect(maps.Keys(t.listeners))
	cms := slices.Collect(maps.Values(t.cms))
	t.mu.Unlock()

	var errs []error
	for _, l := range listeners {
		errs = append(errs, l.Close())
	}
	for _, cm := range cms {
		if err := cm.Close(); err != nil {
			errs = append(errs, fmt.Errorf("rdma: close the communication manager: %w", err))
			continue
		}
		<-cm.done
	}
	return errors.Join(errs...)
}

// manager returns the communication manager of a stack, opened once. t.mu is held.
func (t *Transport) manager(s fabric.Stack) (*manager, error) {
	if t.closed {
		return nil, errors.New("the transport is closed")
	}
	if cm := t.cms[s]; cm != nil {
		return cm, nil
	}
	p := t.cfg.Provider
	switch s {
	case fabric.SoftStack:
		p = t.cfg.Soft
	case fabric.SoftIWARPStack:
		p = t.cfg.SoftIWARP
	}
	if p == nil {
		return nil, verbs.ErrNoDevice
	}
	cm, err := p.NewCM()
	if err != nil {
		return nil, err
	}
	t.cms[s] = &manager{cm, make(chan struct{})}
	go t.events(t.cms[s])
	return t.cms[s], nil
}

// events dispatches the events of a communication manager until it is closed.
func (t *Transport) events(cm *manager) {
	defer close(cm.done)
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
			t.cfg.Log.Error("RDMA communication manager fails, trying again", "err", err)
		}
		failed = true
		time.Sleep(100 * time.Millisecond)
	}
}

func (t *Transport) event(ev *verbs.Event) {
	if ev.Type == verbs.EventConnectRequest {
		t.connectRequest(ev)
		return
	}
	if ev.Type == verbs.EventDeviceRemoval {
		if dev := ev.ID.Device(); dev != nil {
			t.deviceRemoved(dev)
		}
	}
	t.mu.Lock()
	l := t.listening[ev.ID]
	t.mu.Unlock()
	if l != nil {
		l.event(ev)
	} else if c, ok := ev.ID.Context().(*conn); ok {
		c.event(ev)
	}
}

var _ fabric.Transport = (*Transport)(nil)
