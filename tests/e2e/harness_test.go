package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/template"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/ram"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/verbstest"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
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

// options of a harness; the zero value is a target with one reactor and two RAM namespaces: 1 with
// blocks of 512 bytes, 2 with 4096.
type options struct {
	reactors   int // 1 if 0
	memory     int // MiB of each reactor, 64 if 0
	iwarp      bool
	hosts      []string          // allowed; nil: any
	queueDepth int               // 128 if 0
	tcp        func(*tcp.Config) // sets what has no key
	rdma       func(*rdma.Config)
	devices    []backend.Device // instead of the RAM namespaces; the server closes them
	stateFile  string
	tls        string        // of the tcp listener; "": off
	security   string        // of the subsystem; "": none
	control    string        // the socket of the control interface; "": none
	transition time.Duration // of ANA states; 0: the usual one
}

// configuration is the text of the configuration file for options.
var configuration = template.Must(template.New("").Parse(`
listeners:
  - {transport: tcp, address: 127.0.0.1, port: 0, on_unavailable: fail{{with .TLS}}, tls: {{.}}{{end}}}
  - {transport: rdma, address: 10.0.0.1, on_unavailable: fail}
reactors: {count: {{.Reactors}}, spin: 0s, memory: {{.Memory}}MiB}
tcp: {queue_depth: {{.QueueDepth}}}
rdma: {queue_depth: {{.QueueDepth}}}
subsystems:
  - nqn: {{.NQN}}
    {{with .Security}}security: {{.}}{{end}}
    {{if .Hosts}}hosts: [{{.Hosts}}]{{else}}allow_any_host: true{{end}}
    namespaces:
{{- range .Devices}}
      - {nsid: {{.}}, backend: ram, size: 1MiB}
{{- end}}
`))

func (o *options) parse() (*config.Config, error) {
	var devices []int
	for i := range o.devices {
		devices = append(devices, i+1)
	}
	var text bytes.Buffer
	err := configuration.Execute(&text, map[string]any{
		"Reactors": max(o.reactors, 1), "Memory": or(o.memory, 64),
		"QueueDepth": or(o.queueDepth, 128), "NQN": subNQN,
		"Hosts": strings.Join(o.hosts, ", "), "Devices": devices, "TLS": o.tls,
		"Security": o.security,
	})
	if err != nil {
		return nil, err
	}
	c, err := app.Parse("e2e.yaml", text.Bytes(), nil)
	if err == nil && o.tcp != nil {
		o.tcp(&c.TCP)
	}
	if err == nil && o.rdma != nil {
		o.rdma(&c.RDMA)
	}
	return c, err
}

// or is n, or otherwise if that is 0.
func or(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// harness is a running target with both transports: the server of internal/app, on a fake RDMA
// fabric.
type harness struct {
	t       *testing.T
	server  *app.Server
	target  *target.Target
	fabric  *verbstest.Fabric
	addrs   map[nvme.TransportType]netip.AddrPort
	log     *testutil.Log
	devices []backend.Device // of ram, closed after the server
	stop    func()           // ends the target; further calls do nothing
}

// timeout is how long a test waits for an event.
const timeout = time.Minute

func newHarness(t *testing.T, o options) *harness {
	t.Helper()
	h := &harness{
		t: t, log: new(testutil.Log), addrs: map[nvme.TransportType]netip.AddrPort{},
		fabric: verbstest.New(verbstest.Options{}),
	}
	if o.devices == nil {
		o.devices = []backend.Device{openRAM(t, 64<<20, 512), openRAM(t, 64<<20, 4096)}
	}
	c, err := o.parse()
	h.must(err)
	device := verbstest.RoCE
	if o.iwarp {
		device = verbstest.IWARP
	}
	h.fabric.AddHost("target", device("dev0", netip.MustParseAddr("10.0.0.1")))
	h.fabric.AddHost("host", device("dev0", netip.MustParseAddr("10.0.0.2")))
	h.server = app.NewServer(app.Options{
		Config:  c,
		Log:     h.log.Logger(),
		Version: "e2e", Verbs: h.fabric.Provider("target"), StateFile: o.stateFile,
		ControlSocket: o.control, ANATransition: o.transition,
		OpenDevice: func(n *config.Namespace) (backend.Device, error) {
			return o.devices[n.NSID-1], nil
		},
		Failed: func(err error) { t.Errorf("a reactor has failed: %v", err) },
	})
	h.stop = sync.OnceFunc(h.stopOnce)
	t.Cleanup(h.close)
	h.must(h.server.Start())
	// The server has a processor for each reactor, unless the test is about having fewer.
	if n, err := strconv.Atoi(os.Getenv("GOMAXPROCS")); err == nil {
		runtime.GOMAXPROCS(n)
	}
	h.target = h.server.Target()
	for _, a := range h.server.Addrs() {
		h.addrs[a.Transport] = a.AddrPort
	}
	return h
}

func (h *harness) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// gone waits until nothing uses what was removed any more.
func (h *harness) gone(gone <-chan struct{}, err error) {
	h.t.Helper()
	h.must(err)
	<-gone
}

// openRAM opens a RAM device.
func openRAM(t *testing.T, size int64, blockSize int) backend.Device {
	t.Helper()
	d, err := ram.Open(ram.Config{Size: size, BlockSize: blockSize})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// ram opens a RAM device that is closed with the harness.
func (h *harness) ram(size int64, blockSize int) backend.Device {
	h.t.Helper()
	d := openRAM(h.t, size, blockSize)
	h.devices = append(h.devices, d)
	return d
}

// close stops the target, if the test has not, and checks that nothing is left. The hosts have
// closed before.
func (h *harness) close() {
	h.stop()
	h.fabric.Close()
	for _, machine := range []string{"target", "host"} {
		if live := h.fabric.Live(machine); live != (verbstest.Counts{}) {
			h.t.Errorf("RDMA objects of the %s left: %+v", machine, live)
		}
	}
	if h.t.Failed() {
		h.t.Logf("log of the target:\n%s", h.log)
	}
}

func (h *harness) stopOnce() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	// The arenas report memory that was not freed.
	if err := h.server.Stop(ctx); err != nil {
		h.t.Error(err)
	}
	if h.target != nil {
		if n := h.target.Sessions(); n != 0 {
			h.t.Errorf("%d sessions left", n)
		}
		if c := h.target.Controllers(); len(c) > 0 {
			h.t.Errorf("controllers left: %+v", c)
		}
	}
	for _, d := range h.devices {
		if err := d.Close(); err != nil {
			h.t.Error(err)
		}
	}
}

// until waits until cond returns true.
func (h *harness) until(what string, cond func() bool) {
	h.t.Helper()
	deadline := time.Now().Add(timeout)
	for !cond() {
		if time.Now().After(deadline) {
			h.t.Fatalf("%s: not within %v\n%s", what, timeout, h.log)
		}
		time.Sleep(time.Millisecond)
	}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	return ctx
}

// connect connects and enables a controller; it is closed before the harness.
func (h *harness) connect(v variant, change ...func(*host.Options)) *host.Controller {
	h.t.Helper()
	o := v.hostOptions()
	for _, fn := range change {
		fn(&o)
	}
	c, err := host.Connect(testContext(h.t), h.transport(v), o)
	if err != nil {
		h.t.Fatalf("%v\n%s", err, h.log)
	}
	h.t.Cleanup(c.Close)
	return c
}

// open opens an I/O queue; it is closed before its controller.
func (h *harness) open(c *host.Controller, qid uint16, size int) *host.Queue {
	h.t.Helper()
	q, err := c.OpenQueue(testContext(h.t), qid, size)
	if err != nil {
		h.t.Fatalf("%v\n%s", err, h.log)
	}
	h.t.Cleanup(func() {
		if err := q.Close(); err != nil {
			h.t.Errorf("close queue %d: %v", qid, err)
		}
	})
	return q
}

// ping waits until the controller has processed everything sent before.
func (h *harness) ping(c *host.Controller) {
	h.t.Helper()
	_, err := c.GetFeature(testContext(h.t), nvme.FeatureNumberOfQueues)
	h.must(err)
}

func (h *harness) buffer(c *host.Controller, n int) []byte {
	h.t.Helper()
	b, err := c.Map(n)
	h.must(err)
	return b
}

// wantStatus checks the status of a command.
func wantStatus(t *testing.T, what string, err error, want nvme.Status) {
	t.Helper()
	st, ok := host.StatusOf(err)
	if !ok || st&^nvme.More != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// pattern fills b with bytes that depend on seed and position.
func pattern(b []byte, seed uint32) {
	x := seed*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
}

// differ describes where a differs from b; "" if they are equal.
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
