package tcp

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/admission"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/turns"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Transport makes NVMe/TCP listeners and groups.
type Transport struct {
	cfg        Config
	next       atomic.Pointer[Config] // of new connections, see Update
	deepest    atomic.Int64           // the largest MaxDepth so far
	log        *ratelog.Logger        // for events that peers can cause; others go to cfg.Log
	admission  *admission.Counter
	handshakes turns.Pool // of TLS
	// See fabric.Usage.
	encrypted, failedHandshakes atomic.Uint64

	mu        sync.Mutex
	closed    bool
	listeners map[*listener]struct{}
}

// The bytes counted for a queue when it is accepted, and for each command that it may have
// outstanding. Actual use is slightly lower.
const (
	queueBytes   = 16 << 10 // mostly stalledBuffer
	commandBytes = 864      // a request, the handler's state of it, and their lists of segments
)

// New makes a transport.
func New(cfg Config) *Transport {
	cfg.SetDefaults()
	t := &Transport{
		cfg: cfg, log: ratelog.New(cfg.Log), listeners: make(map[*listener]struct{}),
		admission: admission.New(cfg.Limits),
	}
	t.next.Store(&cfg)
	t.deepest.Store(int64(cfg.MaxDepth))
	return t
}

// Update changes MaxDepth, NoHeaderDigest, NoDataDigest and Limits to the values of a valid
// configuration. Existing connections keep their resources, and their controllers the depth
// announced to their hosts. One call at a time, on any goroutine.
func (t *Transport) Update(cfg Config) {
	cfg.SetDefaults()
	t.deepest.Store(max(t.deepest.Load(), int64(cfg.MaxDepth)))
	t.next.Store(&cfg)
	t.admission.SetLimits(cfg.Limits)
}

func (t *Transport) Type() nvme.TransportType { return nvme.TransportTCP }

func (t *Transport) Shares() []fabric.Share { return t.admission.Shares() }

func (t *Transport) Usage() fabric.Usage {
	u := t.admission.Usage()
	u.Handshakes, u.FailedHandshakes = t.encrypted.Load(), t.failedHandshakes.Load()
	return u
}

// Close closes the listeners.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	list := slices.Collect(maps.Keys(t.listeners))
	t.mu.Unlock()
	var errs []error
	for _, l := range list {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

var _ fabric.Transport = (*Transport)(nil)
