package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

const (
	subNQN   = "nqn.2026-11.io.nvmf-target:e2e"
	otherSub = "nqn.2026-11.io.nvmf-target:other"
	hostNQN  = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"
	hostNQN2 = "nqn.2014-08.org.nvmexpress:uuid:66666666-7777-8888-9999-aaaaaaaaaaaa"
	mdts     = 1 << 20
)

// options of an env; the zero value is a target with one reactor and two RAM namespaces: 1 with
// blocks of 512 bytes, 2 with 4096.
type options struct {
	reactors   int // 1 if 0
	memory     int // MiB of each reactor, 64 if 0
	iwarp      bool
	hosts      []string          // allowed; nil: any
	queueDepth int               // 128 if 0
	tcp        func(*tcp.Config) // changes settings without a key
	rdma       func(*rdma.Config)
	devices    []backend.Device // instead of the RAM namespaces; the server closes them
	stateDir   string
	tls        string        // of the tcp listener; "": off
	security   string        // of the subsystem; "": none
	control    string        // the socket of the control interface; "": none
	transition time.Duration // of ANA states; 0: the usual one
	// The stack of the rdma listener, RoCE or iWARP; nil: it has a device.
	soft, softIWARP *soft.Provider
}

// configuration is the text of the configuration file for options.
var configuration = template.Must(template.New("").Parse(`
listeners:
  - {transport: tcp, address: 127.0.0.1, port: 0, on_unavailable: fail{{with .TLS}}, tls: {{.}}{{end}}}
  - {transport: rdma, {{.RDMA}}, on_unavailable: fail}
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

// text returns the configuration file.
func (o *options) text() string {
	var devices []int
	for i := range o.devices {
		devices = append(devices, i+1)
	}
	rdma := "address: 10.0.0.1"
	switch {
	case o.soft != nil:
		rdma += ", stack: soft"
	case o.softIWARP != nil:
		rdma = "address: 127.0.0.1, port: 0, stack: soft-iwarp"
	}
	var text bytes.Buffer
	if err := configuration.Execute(&text, map[string]any{
		"Reactors": max(o.reactors, 1), "Memory": or(o.memory, 64),
		"QueueDepth": or(o.queueDepth, 128), "NQN": subNQN,
		"Hosts": strings.Join(o.hosts, ", "), "Devices": devices, "TLS": o.tls,
		"Security": o.security, "RDMA": rdma,
	}); err != nil {
		panic(err)
	}
	return text.String()
}

func (o *options) change(c *config.Config) {
	if o.tcp != nil {
		o.tcp(&c.TCP)
	}
	if o.rdma != nil {
		o.rdma(&c.RDMA)
	}
}

// or returns n, or otherwise if n is 0.
func or(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// env is a running target with both transports.
type env struct {
	*harness.Harness
}

func newEnv(t *testing.T, o options) *env {
	t.Helper()
	if o.devices == nil {
		o.devices = []backend.Device{
			harness.OpenRAM(t, 64<<20, 512), harness.OpenRAM(t, 64<<20, 4096),
		}
	}
	devices := map[uint32]backend.Device{}
	for i, d := range o.devices {
		devices[uint32(i+1)] = d
	}
	a := app.Options{
		Version: "e2e", StateDir: o.stateDir, ControlSocket: o.control,
		ANATransition: o.transition,
	}
	if o.soft != nil || o.softIWARP != nil {
		a.Soft = func(_ int, iwarp bool) *soft.Provider {
			if p := map[bool]*soft.Provider{false: o.soft, true: o.softIWARP}[iwarp]; p != nil {
				return p
			}
			return soft.New(soft.Options{}) // no listener uses it
		}
	}
	return &env{harness.Start(t, harness.Options{
		Config: o.text(), Change: o.change, Devices: devices, IWARP: o.iwarp, App: a,
	})}
}

// gone waits until nothing uses the removed object any more.
func (h *env) gone(gone <-chan struct{}, err error) {
	h.T.Helper()
	h.Must(err)
	testutil.Receive(h.T, "nothing uses what was removed", gone)
}

// connect connects and enables a controller; it is closed before the server is stopped.
func (h *env) connect(v variant, change ...func(*host.Options)) *host.Controller {
	h.T.Helper()
	o := v.hostOptions()
	for _, fn := range change {
		fn(&o)
	}
	return h.Connect(h.transport(v), o)
}

// wantStatus checks the status of a command.
func wantStatus(t *testing.T, what string, err error, want nvme.Status) {
	t.Helper()
	st, ok := hosttest.StatusOf(err)
	testutil.True(t, ok && st&^nvme.More == want, "%s: %v, want %v", what, err, want)
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

// rounds returns the number of repetitions in a test: test with "make test", and soak with "make
// soak".
func rounds(test, soak int) int {
	if testutil.Soaking() {
		return soak
	}
	return test
}

func fillBytes(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}
