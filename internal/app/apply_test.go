package app_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/engine"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// live is a server with a configuration that changes.
type live struct {
	*harness.Harness
	t   *testing.T
	dir string
}

const listenAny = "{transport: tcp, address: 127.0.0.1, port: 0}"

// newLive starts a server with a configuration, and perhaps with other options.
func newLive(t *testing.T, listeners, subsystems string, other ...app.Options) *live {
	t.Helper()
	l := &live{t: t, dir: t.TempDir()}
	o := append(other, app.Options{Retry: time.Millisecond})[0]
	o.Config = l.parse(listeners, subsystems)
	l.Harness = started(t, o)
	return l
}

// parse makes a configuration; %DIR% is the test's directory.
func (l *live) parse(listeners, subsystems string) *config.Config {
	l.t.Helper()
	text := "listeners: [" + listeners + "]\nreactors: {count: 2, memory: 8MiB}\nsubsystems:\n" +
		strings.ReplaceAll(subsystems, "%DIR%", l.dir)
	return harness.Parse(l.t, text)
}

func (l *live) apply(listeners, subsystems string) []config.Change {
	l.t.Helper()
	return testutil.Value(l.Apply(l.parse(listeners, subsystems)))(l.t)
}

func (l *live) connect(nqn, hostNQN string, at int) (*host.Controller, error) {
	ctx := testutil.Context(l.t)
	o := hostOptions(nqn)
	o.HostNQN = hostNQN
	c, err := host.Connect(ctx, host.TCP{Addr: l.Addrs()[at].AddrPort}, o)
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
				if _, err := l.Apply(c); err != nil {
					testutil.Is(t, err, engine.ErrStopped, "")
					return
				}
			}
		})
	}
	ctx := testutil.Context(t)
	testutil.Check(t, l.Server.Stop(ctx))
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
				testutil.True(t, restart || k.Restart || app.Settable(name),
					"%s cannot be changed", name)
			}
		}
	}
	look("", false, config.Keys(volumes.Backends))
}

func (l *live) refuse(listeners, subsystems string) error {
	l.t.Helper()
	changes, err := l.Apply(l.parse(listeners, subsystems))
	testutil.MustTrue(l.t, err != nil, "applied: %v", changes)
	return err
}

// TestLostStorage: if neither the new nor the old storage can be opened, the namespace becomes
// pending, and its next change is possible.
func TestLostStorage(t *testing.T) {
	for _, x := range []string{"x", "y"} { // removed with its storage moved, or modified
		l := newFaultyLive(t, listenAny, sub(anyHosts, inRAM, onFile(2, "x")))
		l.file("x")
		l.file("y")
		works := l.open.Load()
		l.opens(func(*config.Namespace) (backend.Device, error) { return nil, errOpen })
		wanted := onFile(3, "x")
		if x == "y" {
			wanted = onFile(2, "y")
		}
		err := l.refuse(listenAny, sub(anyHosts, inRAM, wanted))
		testutil.Is(t, err, errOpen, "")
		list := l.Engine().Volumes.Pending()
		testutil.True(t, len(list) == 1 && list[0].NSID == 2, "%s: pending: %v", x, list)
		l.open.Store(works)
		l.apply(listenAny, sub(anyHosts, inRAM, wanted))
		list = l.Engine().Volumes.Pending()
		testutil.True(t, len(list) == 0, "%s: pending: %v", x, list)
	}
}

// TestUnusableStorage: storage of a pending namespace that no host could use is closed.
func TestUnusableStorage(t *testing.T) {
	l := newFaultyLive(t, listenAny, sub(anyHosts, inRAM))
	var unusable *counted
	l.opens(func(n *config.Namespace) (backend.Device, error) {
		if n.Timeout != 5*time.Second {
			return nil, unix.ENXIO
		}
		unusable = newCounted(t)
		unusable.blockSize = 500
		return unusable, nil
	})
	l.apply(listenAny, sub(anyHosts, inRAM, onFile(2, "x")))
	slower := strings.Replace(onFile(2, "x"), "size:", "io_timeout: 5s, size:", 1)
	_ = l.refuse(listenAny, sub(anyHosts, inRAM, slower))
	testutil.True(t, unusable != nil && unusable.closed.Load() == 1, "it was not closed")
}

// queue connects a host with one I/O queue, and memory for a block.
func (l *live) queue() (*host.Queue, []byte) {
	l.t.Helper()
	c := testutil.Value(l.connect(testNQN, hostA, 0))(l.t)
	q := testutil.Value(c.OpenQueue(l.t.Context(), 1, 16))(l.t)
	l.t.Cleanup(func() { _ = q.Close() })
	b := testutil.Value(c.Map(512))(l.t)
	return q, b
}

// wantHeld waits for a held operation.
func (d *counted) wantHeld(t *testing.T) {
	t.Helper()
	testutil.Until(t, "an operation reaches the storage", func() bool { return d.Held() > 0 })
}

// hungLive is a live target with namespace 2 on storage that a test can hold.
type hungLive struct {
	*faultyLive
	hung  *counted
	read  func() error // from namespace 2
	ended chan error   // has the result of begin
}

func newHungLive(t *testing.T, listeners string) *hungLive {
	t.Helper()
	l := &hungLive{
		newFaultyLive(t, listeners, sub(anyHosts, inRAM)), newCounted(t), nil,
		make(chan error, 1),
	}
	l.file("x")
	l.opens(func(*config.Namespace) (backend.Device, error) { return l.hung, nil })
	l.apply(listeners, sub(anyHosts, inRAM, onFile(2, "x")))
	q, b := l.queue()
	l.read = func() error { return hosttest.Read(t.Context(), q, 2, 0, 1, b) }
	return l
}

// begin begins a read that the storage holds.
func (l *hungLive) begin() {
	l.t.Helper()
	l.hung.Hold(nil)
	go func() { l.ended <- l.read() }()
	l.hung.wantHeld(l.t)
}

// TestRemovedHung: the removal of a subsystem does not wait for storage that does not finish. Until
// it has finished, nobody else can have the storage.
func TestRemovedHung(t *testing.T) {
	t.Parallel()
	l := newHungLive(t, listenAny)
	l.begin()

	other := strings.ReplaceAll(sub(anyHosts, onFile(1, "x")), testNQN, testNQN+"2")
	empty := strings.ReplaceAll(sub(anyHosts, inRAM), testNQN, testNQN+"3")
	l.opens(func(*config.Namespace) (backend.Device, error) { return newCounted(t), nil })
	l.apply(listenAny, empty)
	_ = testutil.Receive(t, "its host is disconnected", l.ended)
	l.Engine().ReleaseLimit = time.Millisecond
	err := l.refuse(listenAny, empty+other)
	testutil.True(t, strings.Contains(err.Error(),
		"subsystems[1].namespaces[0]: it waits for namespace 2 of "+testNQN+", which was removed"),
		"%v", err)
	l.hung.Release()
	l.Engine().ReleaseLimit = testTimeout
	l.apply(listenAny, empty+other)
	n := l.hung.closed.Load()
	testutil.True(t, n == 1, "the storage was closed %d times", n)
}

// TestHungStorage: storage that still works on a command cannot move to another namespace. Such a
// change fails, and ends at once if the target stops.
func TestHungStorage(t *testing.T) {
	t.Parallel()
	l := newHungLive(t, listenAny)
	l.begin()
	l.Engine().ReleaseLimit = time.Millisecond
	err := l.refuse(listenAny, sub(anyHosts, inRAM, onFile(3, "x")))
	testutil.True(t, strings.Contains(err.Error(), "still works on commands") &&
		l.hung.closed.Load() == 0, "%v, closed %d times", err, l.hung.closed.Load())
	l.hung.Release()
	testutil.Check(t, testutil.Receive(t, "the read", l.ended))
	testutil.Equal(t, l.read(), nil, "after the change that failed")

	l.begin()
	l.Engine().ReleaseLimit = time.Hour
	wanted, applied := l.parse(listenAny, sub(anyHosts, inRAM, onFile(3, "x"))), make(chan error)
	go func() {
		_, err := l.Apply(wanted)
		applied <- err
	}()
	stopped := make(chan error)
	go func() { stopped <- l.Server.Stop(t.Context()) }()
	testutil.Is(t, testutil.Receive(t, "the change", applied), engine.ErrStopped, "applied")
	l.hung.Release()
	testutil.Check(t, testutil.Receive(t, "the end", stopped))
	_ = testutil.Receive(t, "the end of the read", l.ended)
	n := l.hung.closed.Load()
	testutil.True(t, n == 1, "the storage was closed %d times", n)
}

// TestNotPending: a namespace that waits to lose its storage to another one is not counted as one
// with missing storage.
func TestNotPending(t *testing.T) {
	t.Parallel()
	measured := listenAny + "]\nmetrics: {listen: '127.0.0.1:0'}\n#"
	l, applied := newHungLive(t, measured), make(chan error, 1)
	l.begin()
	wanted := l.parse(measured, sub(anyHosts, inRAM, onFile(3, "x")))
	go func() { applied <- testutil.Err(l.Apply(wanted)) }()
	testutil.Until(t, "the namespace is removed",
		func() bool { return len(l.Target.Stats()) == 1 })
	testutil.True(t, strings.Contains(scraped(t, l.Harness),
		"\nnvmf_target_namespaces_pending 0\n"), "a namespace is pending")
	l.hung.Release()
	_ = testutil.Receive(t, "the end of the read", l.ended)
	testutil.Check(t, testutil.Receive(t, "the change", applied))
}

// TestProblemsOfChanges: clients get the place of a failed change, and the errors of undoing it.
func TestProblemsOfChanges(t *testing.T) {
	l := newFaultyLive(t, listenAny, sub(anyHosts, inRAM, onFile(2, "x")))
	l.file("x")
	l.opens(func(*config.Namespace) (backend.Device, error) { return nil, errOpen })
	err := l.refuse(listenAny, sub(anyHosts, inRAM, onFile(3, "x")))
	p, ok := errors.AsType[*control.Problem](engine.ForClients(err))
	testutil.MustTrue(t, ok, "%v", err)
	testutil.True(t, p.Place == "test.yaml:4:116" && len(p.More) == 1 && p.More[0].Place == "" &&
		!strings.Contains(p.Detail, "test.yaml"), "%+v: %v", p, err)
}

// TestWriteProtection: storage is not reopened to refuse writes, because knowledge of lost writes
// would be forgotten. It is reopened to accept them again.
func TestWriteProtection(t *testing.T) {
	onFile := func(more string) string {
		return sub(anyHosts, "{nsid: 1, backend: file, path: /none, size: 1MiB"+more+"}")
	}
	l := newFaultyLive(t, listenAny, onFile(""))
	opened := 0
	l.opens(func(*config.Namespace) (backend.Device, error) {
		opened++
		return newCounted(t), nil
	})
	for _, step := range []struct {
		more string
		want int
	}{{", read_only: true", 0}, {", read_only: true, io_timeout: 5s", 0}, {"", 1}} {
		l.apply(listenAny, onFile(step.more))
		testutil.True(t, opened == step.want, "%q: storage was opened %d times, want %d", step.more,
			opened, step.want)
		protected := l.Target.Stats()[0].WriteProtected
		want := strings.Contains(step.more, "read_only")
		testutil.True(t, protected == want, "%q: write protected is %v", step.more, protected)
	}
}

// TestHostsComeLast: a host that a subsystem gains is added only after a namespace that it must not
// use has been restricted to others.
func TestHostsComeLast(t *testing.T) {
	l := newFaultyLive(t, listenAny, sub("hosts: ["+hostA+"]", onFile(1, "x")))
	l.file("y")
	opened := false
	l.opens(func(*config.Namespace) (backend.Device, error) {
		opened = true
		var refused *host.ConnectError
		_, err := l.connect(testNQN, hostB, 0)
		testutil.True(t, errors.As(err, &refused), "the host is connected already: %v", err)
		return newCounted(t), nil
	})
	l.apply(listenAny, sub("hosts: ["+hostA+", "+hostB+"]",
		strings.Replace(onFile(1, "y"), "}", ", hosts: ["+hostA+"]}", 1)))
	testutil.True(t, opened, "the storage was not opened meanwhile")
	testutil.Check(t, testutil.Err(l.connect(testNQN, hostB, 0)))
}
