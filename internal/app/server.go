package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/metrics"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// Options are what a Server is made of.
type Options struct {
	Config *config.Config
	Log    *slog.Logger
	// Version is shown to hosts as the firmware revision and in the announcement.
	Version string
	// RDMA is the RDMA stack to use.
	RDMA verbs.Provider
	// ListenerUp is called when a listener that was waited for has come up; any goroutine.
	ListenerUp func(fabric.Addr)
	// Failed is called when a reactor ends by itself; the server is of no use then. Any goroutine.
	Failed func(error)
	// Retry is the first pause before a listener is tried again; 0 is one second.
	Retry time.Duration
}

// Server is a target assembled from a configuration:
//
//	Start  devices -> target with its subsystems -> transports -> workers (reactor, arena, handler, groups) -> metrics -> listeners
//	Stop   listeners -> connections drained -> metrics -> target -> workers -> transports -> devices
//
// What Start opened, Stop closes, in the opposite order, also after a Start that failed half-way.
type Server struct {
	opts       Options
	log        *slog.Logger
	ports      []port
	devices    []backend.Device
	target     *target.Target
	transports map[nvme.TransportType]fabric.Transport
	workers    []*worker
	health     *watcher        // nil without drives
	metrics    *metrics.Server // nil: not wanted
	listeners  listeners
	next       atomic.Uint64

	stopOnce sync.Once
	stopErr  error
	stopped  chan struct{}
}

// NewServer checks opts; nothing is opened before Start.
func NewServer(opts Options) (*Server, error) {
	ps, err := ports(opts.Config.Listeners)
	if err != nil {
		return nil, err
	}
	return &Server{
		opts: opts, log: opts.Log, ports: ps,
		transports: map[nvme.TransportType]fabric.Transport{}, stopped: make(chan struct{}),
	}, nil
}

// Start opens everything and begins to serve. After an error the caller still has to call Stop.
func (s *Server) Start() error {
	c := s.opts.Config
	if ps := probe(c); len(ps) > 0 {
		return ps
	}
	s.target = target.New(target.Options{Log: s.log, Firmware: s.opts.Version})
	if err := s.addSubsystems(); err != nil {
		return err
	}
	if err := s.startWorkers(); err != nil {
		return err
	}
	if slices.ContainsFunc(c.Subsystems, onDrive) {
		s.health = watch(healthEvery, s.target.CheckHealth)
	}
	if err := s.startMetrics(); err != nil {
		return err
	}
	s.listeners = listeners{log: s.log, open: s.listen, up: s.opts.ListenerUp, retry: s.opts.Retry}
	return s.listeners.start(s.ports)
}

// addSubsystems opens the devices; every one that cannot be opened is reported.
func (s *Server) addSubsystems() error {
	c := s.opts.Config
	var problems config.Problems
	for i, sub := range c.Subsystems {
		tc := target.SubsystemConfig{
			NQN: sub.NQN, Serial: sub.Serial, Model: sub.Model, AllowAnyHost: sub.AllowAnyHost,
			Hosts:     sub.Hosts,
			CNTLIDMin: sub.CNTLIDMin, CNTLIDMax: sub.CNTLIDMax, MaxIOQueues: sub.MaxIOQueues,
			MaxTransfer:  int(sub.MaxTransfer),
			MaxQueueSize: max(c.TCP.QueueDepth, c.RDMA.QueueDepth),
		}
		for j, n := range sub.Namespaces {
			dev, err := s.openDevice(&n.Storage, n.ReadOnly)
			if err != nil {
				problems = append(problems,
					c.Problem(fmt.Sprintf("subsystems[%d].namespaces[%d]", i, j), err.Error(),
						deviceMend(&n.Storage)))
				continue
			}
			s.devices = append(s.devices, dev)
			nc := target.NamespaceConfig{
				NSID: n.NSID, Device: dev, ReadOnly: n.ReadOnly,
				Timeout: n.IOTimeout, Drive: driveOf(&n.Storage),
			}
			if err := namespaceIDs(n, &nc); err != nil {
				return fmt.Errorf("subsystems[%d].namespaces[%d]: %w", i, j, err)
			}
			tc.Namespaces = append(tc.Namespaces, nc)
		}
		if len(problems) > 0 {
			continue
		}
		if err := s.target.AddSubsystem(tc); err != nil {
			problems = append(problems,
				c.Problem(fmt.Sprintf("subsystems[%d]", i), err.Error(), ""))
		}
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}

// startWorkers makes the transports that are used, and the reactors.
func (s *Server) startWorkers() error {
	c := s.opts.Config
	cpus := reactorCPUs(c.Reactors)
	// A reactor occupies a processor of the Go scheduler for as long as it has work.
	if limit := len(cpus) + 2; runtime.GOMAXPROCS(0) < limit {
		runtime.GOMAXPROCS(limit)
	}
	var list []fabric.Transport
	if uses(s.ports, nvme.TransportTCP) {
		list = append(list, tcp.New(tcp.Config{
			Log: s.log, MaxDepth: c.TCP.QueueDepth, InCapsuleSize: int(c.TCP.InCapsuleSize),
			NoHeaderDigest: !c.TCP.HeaderDigest, NoDataDigest: !c.TCP.DataDigest,
			QueueMemory:           int64(c.TCP.QueueMemory),
			CongestionControl:     c.TCP.CongestionControl,
			MaxConnections:        c.TCP.MaxConnections,
			MaxConnectionsPerHost: c.TCP.MaxConnectionsPerHost,
		}))
	}
	if uses(s.ports, nvme.TransportRDMA) {
		inCapsule := int(c.RDMA.InCapsuleSize)
		if inCapsule == 0 {
			inCapsule = -1 // none; 0 would be the default
		}
		tos := make(map[uint16]uint8)
		for _, p := range s.ports {
			tos[p.id] = p.tos
		}
		list = append(list, rdma.New(rdma.Config{
			Provider: s.opts.RDMA, Log: s.log, MaxDepth: c.RDMA.QueueDepth,
			InCapsuleSize: inCapsule,
			MaxQueues:     c.RDMA.MaxConnections, MaxQueuesPerHost: c.RDMA.MaxConnectionsPerHost,
			TOS: tos, QueueMemory: int64(c.RDMA.QueueMemory),
			SharedReceives: c.RDMA.SharedReceives,
		}))
	}
	for _, t := range list {
		s.transports[t.Type()] = t
	}
	spin := c.Reactors.Spin
	if !c.Given("reactors.spin") {
		spin = reactor.DefaultSpin()
	}
	for i, cpu := range cpus {
		w, err := newWorker(workerConfig{
			index: i, cpu: cpu, spin: spin, memory: int(c.Reactors.Memory),
			target: s.target, transports: list, log: s.log,
		})
		if err != nil {
			return err
		}
		s.workers = append(s.workers, w)
		w.run(s.opts.Failed)
	}
	pinned := "no CPU"
	if len(c.Reactors.CPUs) > 0 {
		pinned = fmt.Sprint(c.Reactors.CPUs)
	}
	s.log.Info("reactors run", "count", len(cpus), "pinned to", pinned, "memory of each",
		c.Reactors.Memory, "spin", spin.Round(time.Microsecond))
	return nil
}

// listen opens one port and tells the discovery service.
func (s *Server) listen(p port) (fabric.Listener, error) {
	c := s.opts.Config.Reactors
	if p.addr.Transport == nvme.TransportRDMA {
		if err := checkMemlock(len(s.workers), c.Memory); err != nil {
			return nil, fmt.Errorf("listen at %v: %w", p.addr, err)
		}
	}
	l, err := s.transports[p.addr.Transport].Listen(p.addr, p.id, s.place)
	if err != nil {
		return nil, err
	}
	if err := s.target.AddPort(target.Port{ID: p.id, Addr: l.Addr()}); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// place gives a new connection to the reactor with the least load, and among those with the same to
// one that is near: on the processor where its packets come in, or on the NUMA node of its device;
// or to the next in turn. Queue 0 has no load worth spreading; RDMA tells it apart now, TCP only
// later, and does not count it from then on.
func (s *Server) place(conn fabric.Conn) {
	info := conn.Info()
	w := s.workers[0]
	if info.QID != 0 {
		n, near := int(s.next.Add(1)%uint64(len(s.workers))), nearness(conn)
		w = s.workers[n]
		for _, other := range append(s.workers[n+1:len(s.workers):len(s.workers)],
			s.workers[:n]...) {
			more := load(other.groups[info.Transport]) - load(w.groups[info.Transport])
			if more < 0 || more == 0 && near(other) && !near(w) {
				w = other
			}
		}
	}
	if err := w.groups[info.Transport].Adopt(conn); err != nil {
		s.log.Warn("connection refused", "remote", info.Remote, "error", err)
	}
}

// nearness tells reactors that are near to a connection from others, as far as that is known.
func nearness(conn fabric.Conn) func(w *worker) bool {
	cpu, node := -1, sys.NoNode
	if c, ok := conn.(fabric.CPUConn); ok {
		cpu = c.CPU()
	}
	if c, ok := conn.(fabric.NodeConn); ok {
		node = c.Node()
	}
	return func(w *worker) bool {
		return cpu >= 0 && w.cpu == cpu || node != sys.NoNode &&
			w.node == node
	}
}

// load is how many I/O queues a group has, as far as it knows.
func load(g fabric.Group) int {
	if l, ok := g.(fabric.LoadReporter); ok {
		return l.Load()
	}
	return 0
}

// announcement describes what is served now.
func (s *Server) announcement() announcement {
	a := announcement{version: s.opts.Version}
	for _, sub := range s.opts.Config.Subsystems {
		a.subsystems = append(a.subsystems, sub.NQN)
		a.namespaces += len(sub.Namespaces)
	}
	a.up, a.waiting = s.listeners.addrs()
	return a
}

// Addrs are the addresses listened on now, with real ports.
func (s *Server) Addrs() []netip.AddrPort {
	up, _ := s.listeners.addrs()
	var out []netip.AddrPort
	for _, a := range up {
		out = append(out, a.AddrPort)
	}
	return out
}

// Stop ends everything: no new connection is taken, what is connected is drained, then all is
// closed. If ctx ends first, Stop returns at once while the rest goes on; another call waits for it
// again.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() {
		go func() {
			s.stopErr = s.stop()
			close(s.stopped)
		}()
	})
	select {
	case <-s.stopped:
		return s.stopErr
	case <-ctx.Done():
		return fmt.Errorf("stopped without waiting for the rest: %w", context.Cause(ctx))
	}
}

func (s *Server) stop() error {
	errs := []error{s.listeners.close()}
	var gone []<-chan struct{}
	for _, w := range s.workers {
		gone = append(gone, w.disconnect())
	}
	for _, g := range gone {
		<-g
	}
	if s.metrics != nil {
		errs = append(errs, s.metrics.Close())
	}
	if s.health != nil {
		s.health.close()
	}
	if s.target != nil {
		errs = append(errs, s.target.Close())
	}
	for _, w := range s.workers {
		errs = append(errs, w.stop())
	}
	for _, w := range s.workers {
		errs = append(errs, w.close())
	}
	for _, t := range s.transports {
		errs = append(errs, t.Close())
	}
	for _, d := range s.devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
