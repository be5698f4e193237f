// Package harness runs the server of internal/app in the process of a test: with a configuration as
// text, on loopback TCP and on a fake RDMA fabric. It needs neither root nor hardware. Tests that
// need a whole server share it:
//
//	h := harness.Start(t, harness.Options{
//		Config: `
//	listeners:
//	  - {transport: tcp, address: 127.0.0.1, port: 0, on_unavailable: fail}
//	  - {transport: rdma, address: 10.0.0.1, on_unavailable: fail}
//	reactors: {count: 1, spin: 0s, memory: 64MiB}
//	subsystems:
//	  - nqn: nqn.2026-11.io.nvmf-target:test
//	    allow_any_host: true
//	    namespaces: [{nsid: 1, backend: ram, size: 64MiB}]
//	`})
//	c := h.Connect(h.TCP(), host.Options{HostNQN: hostNQN, SubNQN: subNQN})
//	q := h.Open(c, 1, 32)
//	h.Must(q.Write(testutil.Context(t), 1, 0, 1, h.Buffer(c, 512), 0))
//	h.Until("the host is counted", func() bool { return h.Target.Sessions() == 2 })
//
// At the end of the test the queues and the controllers are closed, in this order, and then the
// server is stopped. The test fails if a reactor has failed, or if memory, sessions, controllers or
// RDMA objects are left; a failed test shows the log of the server. Cleanups that a test registers
// with t.Cleanup before Start run after that, and cleanups registered after Start run before.
package harness

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/ram"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// The machines of the fake RDMA fabric, and their addresses. A test may add more.
const (
	TargetMachine = "target"
	HostMachine   = "host"
)

var (
	targetAddr = netip.MustParseAddr("10.0.0.1")
	hostAddr   = netip.MustParseAddr("10.0.0.2")
)

// Options of a Harness. Only Config is required, or App.Config in its place.
type Options struct {
	Config string               // the text of the configuration file
	Change func(*config.Config) // changes settings without a key
	// Devices replace the storage of the configuration, by NSID. The server closes them. If there
	// are none, it opens the storage of the configuration.
	Devices map[uint32]backend.Device
	IWARP   bool              // the RDMA devices are iWARP, not RoCE
	Verbs   verbstest.Options // of the fabric
	// Fabric and Machine place the target in a fabric of the test, which makes and closes the
	// machines.
	Fabric  *verbstest.Fabric
	Machine string
	// App has the other options of the server: the socket, the state file, and so on. The fields
	// above override it. Without App.Verbs the server uses the fabric, and without App.Log the log
	// of the Harness.
	App app.Options
}

// Harness is a running server.
type Harness struct {
	*app.Server
	T      *testing.T
	Target *target.Target // nil before Start
	Fabric *verbstest.Fabric
	Log    *testutil.Log
	// Stop stops the server and checks for leaks. Further calls do nothing.
	Stop func()

	devices []backend.Device // of RAM
}

// Main runs the tests of a package. It fails if a goroutine, a file descriptor or off-heap memory
// is left after them.
func Main(m *testing.M) {
	testutil.Main(m, func() error {
		if u := mem.Usage(); len(u) > 0 {
			return fmt.Errorf("off-heap memory is left: %+v", u)
		}
		return nil
	})
}

// Parse parses a configuration file with this text.
func Parse(t testing.TB, text string) *config.Config {
	t.Helper()
	return testutil.Value(app.Parse("test.yaml", []byte(text), nil))(t)
}

// Start starts a server. The end of the test stops it.
func Start(t *testing.T, o Options) *Harness {
	t.Helper()
	h := New(t, o)
	h.Must(h.Start())
	return h
}

// Start starts a server of New.
func (h *Harness) Start() error {
	err := h.Server.Start()
	// The server has a processor for each reactor, unless the test is about having fewer.
	if n, err := strconv.Atoi(os.Getenv("GOMAXPROCS")); err == nil {
		runtime.GOMAXPROCS(n)
	}
	h.Target = h.Server.Target()
	return err
}

// New makes a server that does not run yet. The end of the test stops it.
func New(t *testing.T, o Options) *Harness {
	t.Helper()
	h := &Harness{T: t, Log: new(testutil.Log), Fabric: o.Fabric}
	a := o.App
	if a.Config == nil {
		a.Config = Parse(t, o.Config)
	}
	if o.Change != nil {
		o.Change(a.Config)
	}
	if h.Fabric == nil && a.Verbs == nil {
		h.Fabric, o.Machine = newFabric(o), TargetMachine
		t.Cleanup(h.closeFabric)
	}
	if a.Verbs == nil {
		a.Verbs = h.Fabric.Provider(o.Machine)
	}
	if a.Log == nil {
		a.Log = h.Log.Logger()
	}
	a.Failed = func(err error) { t.Errorf("a reactor has failed: %v", err) }
	if o.Devices != nil {
		a.OpenDevice = func(n *config.Namespace) (backend.Device, error) {
			return o.Devices[n.NSID], nil
		}
	}
	h.Server = app.NewServer(a)
	h.Stop = sync.OnceFunc(h.stop)
	t.Cleanup(h.Stop)
	return h
}

func newFabric(o Options) *verbstest.Fabric {
	f, device := verbstest.New(o.Verbs), verbstest.RoCE
	if o.IWARP {
		device = verbstest.IWARP
	}
	f.AddHost(TargetMachine, device("dev0", targetAddr))
	f.AddHost(HostMachine, device("dev0", hostAddr))
	return f
}

func (h *Harness) closeFabric() {
	h.Fabric.Close()
	for _, machine := range []string{TargetMachine, HostMachine} {
		testutil.Equal(h.T, h.Fabric.Live(machine), (verbstest.Counts{}),
			"RDMA objects of the %s are left", machine)
	}
}

func (h *Harness) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	// The arenas report leaked memory.
	testutil.Equal(h.T, h.Server.Stop(ctx), nil, "stop")
	if h.Target != nil {
		testutil.Equal(h.T, h.Target.Sessions(), 0, "sessions are left")
		c := h.Target.Controllers()
		testutil.True(h.T, len(c) == 0, "controllers are left: %+v", c)
	}
	for _, d := range h.devices {
		testutil.Check(h.T, d.Close())
	}
	if h.T.Failed() {
		h.T.Logf("log of the target:\n%s", h.Log)
	}
}

// Must fails the test if err is not nil.
func (h *Harness) Must(err error) {
	h.T.Helper()
	testutil.Must(h.T, err)
}

// Until waits until cond returns true; the text names the event.
func (h *Harness) Until(what string, cond func() bool) {
	h.T.Helper()
	testutil.Until(h.T, what, cond)
}

// Addr returns the address of the first listener of a transport.
func (h *Harness) Addr(transport nvme.TransportType) netip.AddrPort {
	h.T.Helper()
	for _, a := range h.Server.Addrs() {
		if a.Transport == transport {
			return a.AddrPort
		}
	}
	h.T.Fatalf("no listener of %v", transport)
	panic("unreachable")
}

// TCP connects hosts to the first TCP listener.
func (h *Harness) TCP() host.TCP { return host.TCP{Addr: h.Addr(nvme.TransportTCP)} }

// Connect connects and enables a controller. It is closed before the server is stopped.
func (h *Harness) Connect(t host.Transport, o host.Options) *host.Controller {
	h.T.Helper()
	c, err := host.Connect(testutil.Context(h.T), t, o)
	h.Must(err)
	h.T.Cleanup(c.Close)
	return c
}

// Open opens an I/O queue. It is closed before its controller.
func (h *Harness) Open(c *host.Controller, qid uint16, size int) *host.Queue {
	h.T.Helper()
	q, err := c.OpenQueue(testutil.Context(h.T), qid, size)
	h.Must(err)
	h.T.Cleanup(func() {
		testutil.Equal(h.T, q.Close(), nil, "close queue %d", qid)
	})
	return q
}

// Ping waits until the controller has processed everything sent before.
func (h *Harness) Ping(c *host.Controller) {
	h.T.Helper()
	_, err := hosttest.GetFeature(testutil.Context(h.T), c, nvme.FeatureNumberOfQueues)
	h.Must(err)
}

// Buffer returns memory for the data of commands.
func (h *Harness) Buffer(c *host.Controller, n int) []byte {
	h.T.Helper()
	b, err := c.Map(n)
	h.Must(err)
	return b
}

// RAM opens a RAM device that is closed after the server, for a namespace that the test adds.
func (h *Harness) RAM(size int64, blockSize int) backend.Device {
	h.T.Helper()
	d := OpenRAM(h.T, size, blockSize)
	h.devices = append(h.devices, d)
	return d
}

// OpenRAM opens a RAM device.
func OpenRAM(t testing.TB, size int64, blockSize int) backend.Device {
	t.Helper()
	return testutil.Value(ram.Open(ram.Config{Size: size, BlockSize: blockSize}))(t)
}
