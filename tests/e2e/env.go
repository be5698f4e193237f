package e2e

import (
	"bytes"
	"cmp"
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
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// The names of the subsystem with the namespaces of an Env, of another one for tests that add it,
// and of two hosts; and the largest transfer of a command in bytes.
const (
	SubNQN   = "nqn.2026-11.io.nvmf-target:e2e"
	OtherSub = "nqn.2026-11.io.nvmf-target:other"
	HostNQN  = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"
	HostNQN2 = "nqn.2014-08.org.nvmexpress:uuid:66666666-7777-8888-9999-aaaaaaaaaaaa"
	MDTS     = 1 << 20
)

// Options of an Env. The zero value is a target with one reactor and two RAM namespaces: 1 with
// blocks of 512 bytes, 2 with 4096.
type Options struct {
	Reactors   int // 1 if 0
	Memory     int // MiB of each reactor, 64 if 0
	IWARP      bool
	Hosts      []string          // allowed; nil: any
	QueueDepth int               // 128 if 0
	TCP        func(*tcp.Config) // changes settings without a key
	RDMA       func(*rdma.Config)
	Devices    []backend.Device // instead of the RAM namespaces; the server closes them
	StateDir   string
	TLS        string        // of the tcp listener; "": off
	Security   string        // of the subsystem; "": none
	Control    string        // the socket of the control interface; "": none
	Transition time.Duration // of ANA states; 0: the usual one
	// The stack of the rdma listener, RoCE or iWARP; nil: it has a device.
	Soft, SoftIWARP *soft.Provider
	Port            uint16 // of the tcp listener; 0: any
}

// configuration is the text of the configuration file for options.
var configuration = template.Must(template.New("").Parse(`
listeners:
  - {transport: tcp, address: 127.0.0.1, port: {{.Port}}, on_unavailable: fail
     {{with .TLS}}, tls: {{.}}{{end}}}
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
func (o *Options) text() string {
	var devices []int
	for i := range o.Devices {
		devices = append(devices, i+1)
	}
	rdma := "address: 10.0.0.1"
	switch {
	case o.Soft != nil:
		rdma += ", stack: soft"
	case o.SoftIWARP != nil:
		rdma = "address: 127.0.0.1, port: 0, stack: soft-iwarp"
	}
	var text bytes.Buffer
	if err := configuration.Execute(&text, map[string]any{
		"Reactors": max(o.Reactors, 1), "Memory": cmp.Or(o.Memory, 64),
		"QueueDepth": cmp.Or(o.QueueDepth, 128), "NQN": SubNQN,
		"Hosts": strings.Join(o.Hosts, ", "), "Devices": devices, "TLS": o.TLS,
		"Security": o.Security, "RDMA": rdma, "Port": o.Port,
	}); err != nil {
		panic(err)
	}
	return text.String()
}

func (o *Options) change(c *config.Config) {
	if o.TCP != nil {
		o.TCP(&c.TCP)
	}
	if o.RDMA != nil {
		o.RDMA(&c.RDMA)
	}
}

// Env is a running target with both transports.
type Env struct {
	*harness.Harness
}

// New starts a target. The end of the test stops it.
func New(t *testing.T, o Options) *Env {
	t.Helper()
	if o.Devices == nil {
		o.Devices = []backend.Device{
			harness.OpenRAM(t, 64<<20, 512), harness.OpenRAM(t, 64<<20, 4096),
		}
	}
	devices := map[uint32]backend.Device{}
	for i, d := range o.Devices {
		devices[uint32(i+1)] = d
	}
	a := app.Options{
		Version: "e2e", StateDir: o.StateDir, ControlSocket: o.Control,
		ANATransition: o.Transition,
	}
	if o.Soft != nil || o.SoftIWARP != nil {
		a.Soft = func(_ int, iwarp bool) *soft.Provider {
			if p := map[bool]*soft.Provider{false: o.Soft, true: o.SoftIWARP}[iwarp]; p != nil {
				return p
			}
			return soft.New(soft.Options{}) // no listener uses it
		}
	}
	return &Env{harness.Start(t, harness.Options{
		Config: o.text(), Change: o.change, Devices: devices, IWARP: o.IWARP, App: a,
	})}
}

// Gone waits until nothing uses the removed object any more.
func (h *Env) Gone(gone <-chan struct{}, err error) {
	h.T.Helper()
	h.Must(err)
	testutil.Receive(h.T, "nothing uses what was removed", gone)
}

// Dial connects and enables a controller. It is closed before the server is stopped.
func (h *Env) Dial(v Variant, change ...func(*host.Options)) *host.Controller {
	h.T.Helper()
	o := v.HostOptions()
	for _, fn := range change {
		fn(&o)
	}
	return h.Connect(h.Transport(v), o)
}

// Differ describes where a differs from b; "" if they are equal.
func Differ(a, b []byte) string {
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

// WantWholeBlocks checks that all bytes of a block are the same.
func WantWholeBlocks(t *testing.T, b []byte, block int) bool {
	for ; len(b) > 0; b = b[block:] {
		if n := bytes.Count(b[:block], b[:1]); n != block {
			t.Errorf("a torn block: %d of %d bytes are %#x", n, block, b[0])
			return false
		}
	}
	return true
}
