package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/ram"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/verbstest"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

const (
	subNQN   = "nqn.2026-11.io.nvmf-target:e2e"
	otherSub = "nqn.2026-11.io.nvmf-target:other"
	hostNQN  = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"
	hostNQN2 = "nqn.2014-08.org.nvmexpress:uuid:66666666-7777-8888-9999-aaaaaaaaaaaa"
	mdts     = 1 << 20
)

// options of a rig; the zero value is a target with one reactor and two RAM namespaces: 1 with
// blocks of 512 bytes, 2 with 4096.
type options struct {
	reactors  int
	spin      time.Duration
	arena     int // bytes per reactor
	iwarp     bool
	hosts     []string // allowed; nil: any
	tcp       tcp.Config
	rdma      rdma.Config
	queueSize int
	devices   []backend.Device // instead of the RAM namespaces; the rig closes them
}

// rig is a running target.
type rig struct {
	t          *testing.T
	target     *target.Target
	fab        *verbstest.Fabric
	transports []fabric.Transport
	workers    []*worker
	addrs      map[nvme.TransportType]netip.AddrPort
	log        *logBuffer
	next       atomic.Uint32
	listeners  []fabric.Listener
	stopOnce   sync.Once
	devices    []backend.Device // to be closed last
}

// worker is a reactor with what lives on it, as internal/app makes it.
type worker struct {
	loop    *reactor.Reactor
	arena   *mem.Arena
	memory  *mem.Pool
	handler *target.Handler
	groups  map[nvme.TransportType]fabric.Group
	cancel  context.CancelFunc
	ended   chan error
}

// logBuffer keeps the log, which is shown if the test fails.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// String is the end of the log.
func (l *logBuffer) String() string {
	const most = 4000
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.b.Bytes()
	return string(b[max(0, len(b)-most):])
}

// patience is how long a test waits for what should happen at once.
const patience = time.Minute

func newRig(t *testing.T, o options) *rig {
	t.Helper()
	if o.reactors == 0 {
		o.reactors = 1
	}
	if o.arena == 0 {
		o.arena = 64 << 20
	}
	r := &rig{t: t, log: new(logBuffer), addrs: map[nvme.TransportType]netip.AddrPort{}}
	log := slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r.target = target.New(target.Options{Log: log, Firmware: "e2e"})
	r.must(r.target.AddSubsystem(r.subsystem(o)))

	r.fab = verbstest.New(verbstest.Options{})
	device := verbstest.RoCE
	if o.iwarp {
		device = verbstest.IWARP
	}
	r.fab.AddHost("target", device("dev0", netip.MustParseAddr("10.0.0.1")))
	r.fab.AddHost("host", device("dev0", netip.MustParseAddr("10.0.0.2")))
	o.tcp.Log, o.rdma.Log = log, log
	o.rdma.Provider = r.fab.Provider("target")
	r.must(o.tcp.Validate())
	r.must(o.rdma.Validate())
	r.transports = []fabric.Transport{tcp.New(o.tcp), rdma.New(o.rdma)}
	for i := range o.reactors {
		r.startWorker(i, o)
	}
	r.listen(nvme.TransportTCP, 1, netip.MustParseAddrPort("127.0.0.1:0"))
	r.listen(nvme.TransportRDMA, 2, netip.MustParseAddrPort("10.0.0.1:4420"))
	t.Cleanup(r.close)
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) subsystem(o options) target.SubsystemConfig {
	c := target.SubsystemConfig{
		NQN: subNQN, AllowAnyHost: o.hosts == nil, Hosts: o.hosts,
		MaxQueueSize: o.queueSize,
	}
	if o.devices == nil {
		o.devices = []backend.Device{r.ram(64<<20, 512), r.ram(64<<20, 4096)}
	}
	for i, d := range o.devices {
		if !slices.Contains(r.devices, d) {
			r.devices = append(r.devices, d)
		}
		c.Namespaces = append(c.Namespaces, target.NamespaceConfig{NSID: uint32(i + 1), Device: d})
	}
	return c
}

// ram is a RAM device that is closed with the rig.
func (r *rig) ram(size int64, blockSize int) backend.Device {
	d, err := ram.Open(ram.Config{Size: size, BlockSize: blockSize})
	r.must(err)
	r.devices = append(r.devices, d)
	return d
}

func (r *rig) startWorker(i int, o options) {
	w := &worker{groups: map[nvme.TransportType]fabric.Group{}, ended: make(chan error, 1)}
	var err error
	w.loop, err = reactor.New(reactor.Config{Index: i, CPU: -1, Spin: o.spin})
	r.must(err)
	w.arena, err = mem.NewArena("e2e data", o.arena)
	r.must(err)
	w.memory = mem.NewPool(w.arena, min(o.arena/8, 4<<20))
	w.handler, err = r.target.NewHandler(target.HandlerConfig{
		Loop: w.loop, Index: i,
		Memory: w.memory, EventFD: w.loop.EventFD(),
	})
	r.must(err)
	for _, t := range r.transports {
		g, err := t.NewGroup(fabric.GroupConfig{
			Loop: w.loop, Handler: w.handler, Memory: w.memory,
			Index: i,
		})
		r.must(err)
		w.groups[t.Type()] = g
		w.loop.Attach(g)
	}
	w.loop.Attach(w.handler)
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(context.Background())
	go func() { w.ended <- w.loop.Run(ctx) }()
	r.workers = append(r.workers, w)
}

// listen opens a port; connections go to the reactors in turn.
func (r *rig) listen(tt nvme.TransportType, id uint16, at netip.AddrPort) {
	for _, t := range r.transports {
		if t.Type() != tt {
			continue
		}
		l, err := t.Listen(fabric.Addr{Transport: tt, AddrPort: at}, id, func(c fabric.Conn) {
			n := r.next.Add(1)
			_ = r.workers[int(n)%len(r.workers)].groups[tt].Adopt(c)
		})
		r.must(err)
		r.listeners = append(r.listeners, l)
		r.must(r.target.AddPort(target.Port{ID: id, Addr: l.Addr()}))
		r.addrs[tt] = l.Addr().AddrPort
	}
}

// close stops the target, if the test has not, and looks for what is left. The hosts have closed
// before.
func (r *rig) close() {
	r.stop()
	r.fab.Close()
	for _, machine := range []string{"target", "host"} {
		if live := r.fab.Live(machine); live != (verbstest.Counts{}) {
			r.t.Errorf("RDMA objects of the %s left: %+v", machine, live)
		}
	}
	if r.t.Failed() {
		r.t.Logf("log of the target:\n%s", r.log)
	}
}

// stop ends the target in the order of internal/app.
func (r *rig) stop() { r.stopOnce.Do(r.stopNow) }

func (r *rig) stopNow() {
	var errs []error
	for _, l := range r.listeners {
		errs = append(errs, l.Close())
	}
	var gone []chan struct{}
	for _, w := range r.workers {
		done := make(chan struct{})
		gone = append(gone, done)
		w.loop.Post(func() {
			left := len(w.groups)
			for _, g := range w.groups {
				g.Shutdown(func() {
					if left--; left == 0 {
						close(done)
					}
				})
			}
		})
	}
	for _, done := range gone {
		select {
		case <-done:
		case <-time.After(patience):
			r.t.Errorf("connections do not end\n%s", r.log)
		}
	}
	errs = append(errs, r.target.Close())
	if n := r.target.Sessions(); n != 0 {
		r.t.Errorf("%d sessions left", n)
	}
	if c := r.target.Controllers(); len(c) > 0 {
		r.t.Errorf("controllers left: %+v", c)
	}
	for _, w := range r.workers {
		w.cancel()
		errs = append(errs, <-w.ended)
	}
	for _, w := range r.workers {
		for _, g := range w.groups {
			errs = append(errs, g.Close())
		}
		// the arena knows if something is still out
		errs = append(errs, w.arena.Close(), w.loop.Close())
	}
	for _, t := range r.transports {
		errs = append(errs, t.Close())
	}
	for _, d := range r.devices {
		errs = append(errs, d.Close())
	}
	if err := errors.Join(errs...); err != nil {
		r.t.Error(err)
	}
}

// until waits for cond, which others bring about.
func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for !cond() {
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: not within %v\n%s", what, patience, r.log)
		}
		time.Sleep(time.Millisecond)
	}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// connect connects and enables a controller; it is closed before the rig.
func (r *rig) connect(w way, change ...func(*host.Options)) *host.Controller {
	r.t.Helper()
	o := w.hostOptions()
	for _, fn := range change {
		fn(&o)
	}
	c, err := host.Connect(testContext(r.t), r.transport(w), o)
	if err != nil {
		r.t.Fatalf("%v\n%s", err, r.log)
	}
	r.t.Cleanup(c.Close)
	return c
}

// open opens an I/O queue; it is closed before its controller.
func (r *rig) open(c *host.Controller, qid uint16, size int) *host.Queue {
	r.t.Helper()
	q, err := c.OpenQueue(testContext(r.t), qid, size)
	if err != nil {
		r.t.Fatalf("%v\n%s", err, r.log)
	}
	r.t.Cleanup(func() {
		if err := q.Close(); err != nil {
			r.t.Errorf("close queue %d: %v", qid, err)
		}
	})
	return q
}

// ping makes sure that the controller answers, and that it has seen what was sent before.
func (r *rig) ping(c *host.Controller) {
	r.t.Helper()
	_, err := c.GetFeature(testContext(r.t), nvme.FeatureNumberOfQueues)
	r.must(err)
}

func (r *rig) buffer(c *host.Controller, n int) []byte {
	r.t.Helper()
	b, err := c.Map(n)
	r.must(err)
	return b
}

// ramDevice is a RAM device for options.devices.
func ramDevice(t *testing.T) backend.Device {
	t.Helper()
	d, err := ram.Open(ram.Config{Size: 8 << 20, BlockSize: 512})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// wantStatus checks the outcome of a command.
func wantStatus(t *testing.T, what string, err error, want nvme.Status) {
	t.Helper()
	st, ok := host.StatusOf(err)
	if !ok || st&^nvme.More != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// pattern fills b with bytes that depend on seed and place.
func pattern(b []byte, seed uint32) {
	x := seed*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
}

// differ tells where a is not b; "" if it is.
func differ(a, b []byte) string {
	if bytes.Equal(a, b) {
		return ""
	}
	for i := range a {
		if a[i] != b[i] {
			return fmt.Sprintf("byte %d of %d is %#x, want %#x", i, len(a), a[i], b[i])
		}
	}
	return ""
}
