package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/engine"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
	"github.com/nvmf-target/nvmf-target/internal/logs"
	"github.com/nvmf-target/nvmf-target/internal/netif"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/internal/web"
	"github.com/nvmf-target/nvmf-target/internal/workers"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
	"github.com/nvmf-target/nvmf-target/nvme/target/ana"
)

// Options are the parts of a Server.
type Options struct {
	// Config may have settings that no file has: settings of the transports without a key.
	Config *config.Config
	Log    *slog.Logger
	// Level is the level of Log, to change it; nil if it does not change.
	Level *slog.LevelVar
	// Load reads Config again, for Reload.
	Load func(...config.Option) (*config.Config, error)
	// StateDir has the promises to hosts that no file configures. "": they end with the server.
	StateDir string
	// Version is shown to hosts as the firmware revision and in the announcement.
	Version string
	// Verbs is the RDMA stack of the devices; nil if no listener needs one.
	Verbs verbs.Provider
	// Soft returns the RDMA stack without a device for a number of reactors; nil: there is none.
	Soft func(reactors int, iwarp bool) *soft.Provider
	// Network has the addresses of the machine; nil means the real ones.
	Network listeners.Network
	// Sockets are the listening sockets that outlive the program; nil means none.
	Sockets *listeners.Sockets
	// OpenDevice opens the storage of a namespace for the server; nil opens the configured one.
	OpenDevice func(*config.Namespace) (backend.Device, error)

	// ControlSocket is used if the configuration leaves the place to the program; "": none.
	ControlSocket string

	// Any goroutine may call the following functions. They may be nil.

	// ListenerUp: there is a listener at an address that was not available before.
	ListenerUp func(fabric.Addr)
	// NamespaceUp: a pending namespace is now served.
	NamespaceUp func(nqn string, nsid uint32)
	// Failed: a reactor has ended with an error; the server must be stopped.
	Failed func(error)
	// Applied: the first configuration has been applied, and its listeners are open.
	Applied func()
	// Restart starts a process that goes on when end is called.
	Restart func(context.Context) (next *control.Succession, end func(), err error)

	// Retry is the first pause before another try of a listener or namespace; 0: the default.
	Retry time.Duration
	// Settle is the first pause between an event of the network and the reaction; 0: the default.
	Settle time.Duration
	// ANATransition is the duration of the ANA Change state; 0 means the time that hosts are told.
	ANATransition time.Duration
}

// Server is a target assembled from a configuration:
//
//	Start  probe -> state -> target -> transports -> workers (reactor, memory, handler, groups)
//	       -> Apply (subsystems, namespaces with their devices, listeners, metrics, page)
//	       -> control interface
//	Stop   control interface -> page -> listeners -> hosts reset -> connections drained -> metrics
//	       -> target -> workers -> transports -> devices
//
// Stop closes everything opened by Start, even after a failed Start.
type Server struct {
	opts       Options
	log        *slog.Logger
	audit      *logs.Audit
	recorder   *ratelog.Recorder
	peers      *ratelog.Logger // for lines that peers can cause at will
	started    time.Time
	state      *state.Store
	target     *target.Target
	engine     *engine.Engine // nil before Start
	transports map[nvme.TransportType]fabric.Transport
	workers    workers.Workers
	stopHealth func() // nil before Start
	metrics    endpoint[*httpd.Server]
	web        endpoint[*web.Server]
	roles      atomic.Pointer[control.Roles]
	control    atomic.Pointer[control.Server] // nil: not wanted
	listeners  *listeners.Listeners           // nil before Start
	groups     *groups
	lookups

	atStart *config.Config  // has the keys that need a restart
	ending  context.Context // ends first, so that a change in progress ends soon
	end     context.CancelFunc

	// pause waits briefly, and reports whether to try again to get a resource; see patiently.
	pause func() bool

	stopped func() <-chan struct{} // stops the server once; the channel is closed at the end
	stopErr error                  // then: its error
}

// lookups has the facts that take time to find out, and bounds of that time.
type lookups struct {
	disks      func(context.Context) ([]observed.Disk, error)
	ports      func(context.Context) []observed.PortCounter
	hostTotals hostTotals

	usageTimeout, latencyTimeout time.Duration
}

// NewServer makes a server that opens nothing before Start.
func NewServer(opts Options) *Server {
	audit := new(logs.Audit)
	recorder := ratelog.NewRecorder(audit.Handler(opts.Log.Handler()))
	log := slog.New(recorder)
	s := &Server{
		opts: opts, log: log, audit: audit, recorder: recorder,
		peers: ratelog.New(log), started: time.Now(),
		transports: map[nvme.TransportType]fabric.Transport{}, atStart: opts.Config,
		lookups: lookups{
			ports:        doctor.Ports(doctor.PortsDir),
			usageTimeout: usageTimeout, latencyTimeout: latencyTimeout,
		},
	}
	s.stopped = sync.OnceValue(func() <-chan struct{} {
		stopped := make(chan struct{})
		go func() {
			s.stopErr = s.stop()
			close(stopped)
		}()
		return stopped
	})
	s.ending, s.end = context.WithCancel(context.Background())
	s.pause = pauses(s.ending)
	if opts.Network == nil {
		s.opts.Network = netif.Linux()
	}
	s.disks = volumes.Disks(s.current)
	if opts.NamespaceUp == nil {
		s.opts.NamespaceUp = func(string, uint32) {}
	}
	if opts.ListenerUp == nil {
		s.opts.ListenerUp = func(fabric.Addr) {}
	}
	if opts.Failed == nil {
		s.opts.Failed = func(error) {}
	}
	if opts.Applied == nil {
		s.opts.Applied = func() {}
	}
	if opts.Restart == nil {
		s.opts.Restart = noRestart
	}
	return s
}

// Start opens everything and begins to serve. After an error the caller still has to call Stop.
func (s *Server) Start() error {
	engine.GuardSecrets(s.atStart)
	if err := s.probe(); err != nil {
		return err
	}
	err := s.setAudit(s.atStart) // before there is anything to record
	if err != nil {
		return err
	}
	if err = s.patiently(func() (err error) {
		s.state, err = state.Open(s.opts.StateDir)
		return err
	}); err != nil {
		return err
	}
	options, err := s.targetOptions()
	if err != nil {
		return err
	}
	s.groups = newGroups(&s.atStart.Group)
	s.groups.kept.state = s.state
	s.target = target.New(s.groups.kept.through(options))
	s.groups.kept.target = s.target
	s.listeners = listeners.New(listeners.Config{
		Target: s.target, State: s.state, Log: s.log, Peers: s.peers, Network: s.opts.Network,
		Sockets: s.opts.Sockets, Listen: s.listen, Patiently: s.patiently,
		Up: s.opts.ListenerUp, Retry: s.opts.Retry, Settle: s.opts.Settle,
		Transition: cmp.Or(s.opts.ANATransition, ana.TransitionTime*time.Second),
		DrainGroup: s.groups.drain,
	})
	s.groups.hide(s.listeners)
	s.engine = engine.New(engine.Config{
		Config: volumes.Config{
			Target: s.target, State: s.state, Log: s.log, Open: s.opts.OpenDevice,
			Patiently: s.patiently, Up: s.opts.NamespaceUp, Retry: s.opts.Retry, Ending: s.ending,
			Gates: s.groups.gates, Pool: s.groups.pool, Share: s.groups.kept.share,
		},
		Listeners: s.listeners, AtStart: s.atStart, Load: s.opts.Load, Settings: s.settings(),
		Reloading: s.reloading, Network: s.opts.Network, Verbs: s.opts.Verbs,
	})
	if err := s.startWorkers(); err != nil {
		return err
	}
	keys := keyWatch{time.Now(), time.Now()}
	s.stopHealth = watch(healthEvery, func() {
		s.target.CheckHealth()
		keys.check(s.current(), s.log, time.Now())
		s.restoreState()
	})
	s.listeners.Start()
	if _, err = s.Apply(s.atStart); err != nil {
		return err
	}
	s.opts.Applied()
	if err = s.startGroups(); err != nil {
		return err
	}
	if s.opts.Sockets != nil {
		s.opts.Sockets.Started()
	}
	return s.startControl()
}

// restoreState writes files of the state again that were deleted.
func (s *Server) restoreState() {
	s.state.Restore(func(file string, err error) {
		if err != nil {
			s.log.Error("the state is missing, and cannot be written again", "path", file,
				"err", err)
			return
		}
		s.log.Warn("a state file was deleted, and was written again", "path", file)
	})
}

// targetOptions returns the options. Without a state directory promises end with the target.
func (s *Server) targetOptions() (o target.Options, err error) {
	o = target.Options{Log: s.log, Firmware: s.opts.Version}
	if o.Generation, err = s.state.NextGeneration(); err != nil || s.state.Dir() == "" {
		return o, err
	}
	s.state.Each(func(n state.Name, file string) {
		if volumes.Find(s.atStart, config.Object{NQN: n.NQN, NSID: n.NSID}) == nil {
			s.log.Warn("reservations are kept for a namespace that is not configured", "subsystem",
				n.NQN, "nsid", n.NSID, "path", file)
		}
	}, func(err error) {
		s.log.Error("the state of a namespace cannot be used", "err", err)
	})
	o.Protection, o.Reservations = s.state.Protection, s.state.Reservations
	o.Uncorrectable = s.state.Uncorrectable
	return o, nil
}

// probe logs the warnings about this machine and returns the errors.
func (s *Server) probe() error {
	if s.opts.OpenDevice != nil {
		return nil
	}
	var ps config.Problems
	if err := s.patiently(func() error {
		if ps = check.Machine(s.atStart); ps.Failed() {
			return ps
		}
		return nil
	}); err != nil {
		return err
	}
	for _, p := range ps {
		s.log.Warn(p.Error())
	}
	return nil
}

// startWorkers makes the transports and the reactors.
func (s *Server) startWorkers() error {
	c := s.atStart
	tc := c.TCP
	tc.Log = s.log
	if s.opts.Sockets != nil {
		tc.Sockets = s.opts.Sockets
	}
	if tc.TLS == nil {
		tc.TLS, tc.PSKs, tc.KeyCounts = s.listeners.TLSOf, s.engine.TLSPSKs, s.engine.TLSKeyCounts
		tc.KeysExpired = s.engine.TLSKeysExpired
	}
	list := []fabric.Transport{tcp.New(tc)}
	if s.opts.Verbs != nil {
		list = append(list, rdma.New(s.rdmaConfig()))
	}
	for _, t := range list {
		s.transports[t.Type()] = t
	}
	spin := c.Reactors.Spin
	if spin < 0 {
		spin = reactor.DefaultSpin()
	}
	cpus := check.ReactorCPUs(c.Reactors)
	if err := s.workers.Start(workers.Config{
		Target: s.target, Transports: list, Log: s.log, Peers: s.peers,
		CPUs: cpus, Spin: spin, Memory: c.Reactors.Memory, Failed: s.opts.Failed,
	}); err != nil {
		return err
	}
	s.log.Info("reactors started", "reactors", len(cpus), "cpus", c.Reactors.CPUs,
		"memory", lang.Size(c.Reactors.Memory), "spin", spin.Round(time.Microsecond))
	return nil
}

// listen listens at an address for the connections of a port.
func (s *Server) listen(at fabric.Addr, portID uint16) (fabric.Listener, error) {
	t := s.transports[at.Transport]
	if t == nil {
		return nil, fmt.Errorf("listen at %v: %w", at, verbs.ErrNotBuilt)
	}
	return t.Listen(at, portID, s.workers.Place)
}

func (s *Server) rdmaConfig() rdma.Config {
	c := s.atStart.RDMA
	c.Log, c.Provider = s.log, s.opts.Verbs
	if s.opts.Soft != nil {
		reactors := len(check.ReactorCPUs(s.atStart.Reactors))
		roce, iwarp := s.opts.Soft(reactors, false), s.opts.Soft(reactors, true)
		c.Soft, c.SoftIWARP = roce, iwarp
		kernel := s.ports
		s.ports = func(ctx context.Context) []observed.PortCounter {
			return slices.Concat(kernel(ctx), roce.Counters(), iwarp.Counters())
		}
	}
	c.TOS, c.Lost, c.Stack = s.listeners.TOSOf, s.listeners.Lost, s.listeners.StackOf
	c.Awaited = s.listeners.AwaitsDevice
	c.Memlock = func() error {
		reactors := s.atStart.Reactors
		return check.Memlock(len(check.ReactorCPUs(reactors)), reactors.Memory)
	}
	return c
}

// Target returns the target, nil before Start.
func (s *Server) Target() *target.Target { return s.target }

// Reactors returns the activity of each reactor; see workers.Workers.
func (s *Server) Reactors(ctx context.Context) ([]observed.Reactor, error) {
	return s.workers.States(ctx)
}

// Transport returns the transport of this type, nil before Start or if there is none.
func (s *Server) Transport(t nvme.TransportType) fabric.Transport { return s.transports[t] }

// Apply changes the running target to match c; see engine.Engine.
func (s *Server) Apply(c *config.Config) ([]config.Change, error) { return s.engine.Apply(c) }

// Plan returns the changes that Apply would make; see engine.Engine.
func (s *Server) Plan(c *config.Config) ([]config.Change, config.Problems) {
	return s.engine.Plan(c)
}

// Reload loads the configuration again and applies it; see engine.Engine.
func (s *Server) Reload(by ...any) ([]config.Change, error) { return s.engine.Reload(by...) }

// reloading prepares a reload of a configuration; c is nil if it cannot be loaded.
func (s *Server) reloading(c *config.Config) error {
	s.audit.Reopen()
	if c == nil {
		return nil
	}
	return s.renewCertificates(c)
}

// current returns the last applied configuration, or the first one before it is applied.
func (s *Server) current() *config.Config {
	if s.engine == nil {
		return s.atStart
	}
	return s.engine.Current()
}

// Addrs returns the addresses of the open listeners, with real port numbers.
func (s *Server) Addrs() []fabric.Addr {
	if s.listeners == nil { // Start has failed early
		return nil
	}
	up, _ := s.listeners.Addrs()
	return up
}

// Stop drains the connections and closes everything. If ctx ends first, Stop returns at once and
// the rest continues in the background; another call waits for it again.
func (s *Server) Stop(ctx context.Context) error {
	select {
	case <-s.stopped():
		return s.stopErr
	case <-ctx.Done():
		return fmt.Errorf("stopped without waiting for the rest: %w", context.Cause(ctx))
	}
}

func (s *Server) stop() error {
	var errs []error
	s.end()
	if control := s.control.Load(); control != nil {
		errs = append(errs, control.Close())
	}
	if s.engine != nil {
		s.engine.Stop()
	}
	errs = append(errs, s.web.close())
	if s.groups != nil {
		s.groups.stop()
	}
	if s.engine != nil {
		errs = append(errs, s.listeners.Close())
		s.engine.Volumes.Stop()
	}
	s.askForResets()
	s.workers.Disconnect()
	errs = append(errs, s.metrics.close())
	if s.stopHealth != nil {
		s.stopHealth()
	}
	if s.target != nil {
		errs = append(errs, s.target.Close())
	}
	errs = append(errs, s.workers.Stop(), s.workers.Close())
	for _, t := range s.transports {
		errs = append(errs, t.Close())
	}
	if s.engine != nil {
		errs = append(errs, s.engine.Volumes.Close())
	}
	if s.state != nil {
		errs = append(errs, s.state.Close())
	}
	s.audit.Close()
	return errors.Join(errs...)
}
