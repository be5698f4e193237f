package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/engine"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// live is a server with a configuration that changes.
type live struct {
	t   *testing.T
	s   *Server
	dir string
}

const listenAny = "{transport: tcp, address: 127.0.0.1, port: 0}"

// newLive starts a server with a configuration, and perhaps with other options.
func newLive(t *testing.T, listeners, subsystems string, other ...Options) *live {
	t.Helper()
	l := &live{t: t, dir: t.TempDir()}
	o := append(other, Options{Retry: time.Millisecond})[0]
	o.Config = l.parse(listeners, subsystems)
	l.s = started(t, o)
	return l
}

// parse makes a configuration; %DIR% is the test's directory.
func (l *live) parse(listeners, subsystems string) *config.Config {
	l.t.Helper()
	text := "listeners: [" + listeners + "]\nreactors: {count: 2, memory: 8MiB}\nsubsystems:\n" +
		strings.ReplaceAll(subsystems, "%DIR%", l.dir)
	return parsed(l.t, text)
}

func (l *live) apply(listeners, subsystems string) []config.Change {
	l.t.Helper()
	changes := testutil.Value(l.s.Apply(l.parse(listeners, subsystems)))(l.t)
	return changes
}

func (l *live) connect(nqn, hostNQN string, at int) (*host.Controller, error) {
	ctx := testutil.Context(l.t)
	o := hostOptions(nqn)
	o.HostNQN = hostNQN
	c, err := host.Connect(ctx, host.TCP{Addr: l.s.Addrs()[at].AddrPort}, o)
	if err == nil {
		l.t.Cleanup(c.Close)
	}
	return c, err
}

// first returns the text at the beginning of a namespace.
func (l *live) first(c *host.Controller, nsid uint32) string {
	l.t.Helper()
	ctx := testutil.Context(l.t)
	q := testutil.Value(c.OpenQueue(ctx, uint16(nsid), 16))(l.t)
	defer q.Close()
	b, err := c.Map(4096)
	if err == nil {
		err = hosttest.Read(ctx, q, nsid, 0, 1, b[:512])
	}
	testutil.Must(l.t, err)
	return strings.TrimRight(string(b[:512]), "\x00")
}

func (l *live) file(name string) {
	content := make([]byte, 64<<10)
	copy(content, name)
	testutil.Must(l.t, os.WriteFile(filepath.Join(l.dir, name), content, 0o600))
}

const (
	hostA = "nqn.2026-11.io.nvmf-target:a"
	hostB = "nqn.2026-11.io.nvmf-target:b"
)

func sub(keys string, namespaces ...string) string {
	return fmt.Sprintf("  - {nqn: %s, %s, namespaces: [%s]}\n", testNQN, keys,
		strings.Join(namespaces, ", "))
}

func onFile(nsid int, name string) string {
	return fmt.Sprintf("{nsid: %d, backend: file, path: %%DIR%%/%s, size: 64KiB}", nsid, name)
}

// TestApplyAtOnce: concurrent changes, and a stop, wait for each other.
func TestApplyAtOnce(t *testing.T) {
	l := newLive(t, listenAny, sub("allow_any_host: true", "{nsid: 1, backend: ram, size: 1MiB}"))
	var wg sync.WaitGroup
	for i := range 4 {
		c := l.parse(listenAny, sub("allow_any_host: true", "{nsid: 1, backend: ram, size: 1MiB}",
			fmt.Sprintf("{nsid: %d, backend: ram, size: 1MiB}", i+2)))
		wg.Go(func() {
			for {
				if _, err := l.s.Apply(c); err != nil {
					testutil.Is(t, err, engine.ErrStopped, "")
					return
				}
			}
		})
	}
	ctx := testutil.Context(t)
	testutil.Check(t, l.s.Stop(ctx))
	wg.Wait()
}

// TestFileKeys: each key outside lists that needs no restart can be changed.
func TestFileKeys(t *testing.T) {
	var look func(path string, restart bool, keys []lang.Key)
	look = func(path string, restart bool, keys []lang.Key) {
		for _, k := range keys {
			name := strings.TrimPrefix(path+"."+k.Name, ".")
			of := k.Value
			list, ok := of.(interface{ Entry() lang.Value })
			if ok {
				of = list.Entry()
			}
			if inner, section := of.(lang.Mapping); section && !ok {
				look(name, k.Restart, inner)
			} else if !section {
				testutil.True(t, restart || k.Restart || new(Server).settings().Of(name) != nil,
					"%s cannot be changed", name)
			}
		}
	}
	look("", false, config.Keys(volumes.Backends))
}
