package app_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/logs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/internal/web"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// serveFile makes the test binary a target, see startServe.
const serveFile = "NVMF_TEST_SERVE_FILE"

// hastyEnd keeps such a target from waiting for the reader of its output.
const hastyEnd = "NVMF_TEST_HASTY_END"

func TestMain(m *testing.M) {
	// Programs with the race detector wait for a second when they exit; here these are children.
	_ = os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
	if file := os.Getenv(serveFile); file != "" {
		if os.Getenv("STATE_DIRECTORY") == "" {
			_ = os.Setenv("STATE_DIRECTORY", filepath.Dir(file))
		}
		if os.Getenv(hastyEnd) != "" {
			logs.Patience = time.Millisecond
		}
		if err := app.Serve(file, "test", os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	web.Every /= 10 // the page has the next state sooner
	// Parallel tests wait for time limits of the product, with any number of processors.
	_ = flag.Set("test.parallel", "16")
	harness.Main(m)
}

const (
	testNQN     = "nqn.2026-11.io.nvmf-target:test"
	testTimeout = 5 * testutil.Patience
)

// parse makes a configuration with one RAM namespace of these listeners and further keys.
func parse(t *testing.T, listeners string, more ...string) *config.Config {
	t.Helper()
	return harness.Parse(t, fmt.Sprintf(`
listeners: [%s]
subsystems:
  - nqn: %s
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: 16MiB}]
reactors: {count: 2, memory: 16MiB}
%s`, listeners, testNQN, strings.Join(more, "\n")))
}

// loader loads a file, as Serve does.
func loader(file string, environ ...string) func(...config.Option) (*config.Config, error) {
	return func(options ...config.Option) (*config.Config, error) {
		return config.Load(file, environ, volumes.Backends, options...)
	}
}

// newServer makes a server that is stopped at the end of the test. Its configuration is loaded by
// Load unless there is another one.
func newServer(t *testing.T, o app.Options) *harness.Harness {
	t.Helper()
	if o.Config == nil {
		o.Config = testutil.Value(o.Load())(t)
	}
	ports := fixedPorts{byName: map[string]uint16{}}
	o.Config = ports.fix(t, o.Config)
	if load := o.Load; load != nil {
		o.Load = func(options ...config.Option) (*config.Config, error) {
			c, err := load(options...)
			if err != nil {
				return nil, err
			}
			return ports.fix(t, c), nil
		}
	}
	o.Version = "test"
	h := harness.New(t, harness.Options{App: o})
	h.Server.SetPause(func() bool { return false }) // no test has a predecessor that ends
	return h
}

// fixedPorts are the ports of TCP listeners that have port 0 in their configuration, by name. While
// a listener is closed, an ephemeral port may go to a connection of another process.
type fixedPorts struct {
	mu     sync.Mutex
	byName map[string]uint16
}

// fix returns the configuration with these ports.
func (p *fixedPorts) fix(t *testing.T, c *config.Config) *config.Config {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	fixed := *c
	fixed.Listeners = slices.Clone(c.Listeners)
	for i := range fixed.Listeners {
		l := &fixed.Listeners[i]
		if l.Transport != nvme.TransportTCP || l.Port != 0 {
			continue
		}
		if p.byName[l.Name] == 0 {
			p.byName[l.Name] = testutil.FreePort(t)
		}
		l.Port = p.byName[l.Name]
	}
	return &fixed
}

// started makes a server that has started, and is stopped at the end of the test.
func started(t *testing.T, o app.Options) *harness.Harness {
	t.Helper()
	h := newServer(t, o)
	h.Must(h.Start())
	return h
}
