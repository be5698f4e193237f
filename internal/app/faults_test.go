package app_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/ram"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
)

// faults makes an operation fail, or all operations from one on.
type faults struct {
	mu     sync.Mutex
	at, n  int // 0: none fails
	onward bool
}

func (f *faults) set(at int, onward bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at, f.n, f.onward = at, 0, onward
}

// now counts an operation and reports whether it fails.
func (f *faults) now() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	return f.n == f.at || f.onward && f.at > 0 && f.n > f.at
}

func (f *faults) reached() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n >= f.at
}

// TestEveryFault changes all kinds of objects at once, repeatedly. Each time another operation
// fails, until none is left. After each failure everything is as before, and the change can be made
// and taken back, even if nothing can be opened any more to undo it.
func TestEveryFault(t *testing.T) {
	t.Parallel()
	var fail faults
	stack := newStack(t, "127.0.0.1")
	stack.onListen = func() {
		if fail.now() {
			stack.failures = 1 // the caller holds its lock
		}
	}
	l := &live{t: t, dir: t.TempDir()}
	for _, name := range []string{"v", "w", "x", "y", "z"} {
		l.file(name)
	}
	rdma := func(port int, tos string) string {
		return fmt.Sprintf(", {transport: rdma, address: 127.0.0.1, port: %d, "+
			"on_unavailable: fail%s}", port, tos)
	}
	other := func(n int, keys string, namespaces ...string) string {
		return strings.ReplaceAll(sub(keys, namespaces...), testNQN, fmt.Sprint(testNQN, n))
	}
	delayed := strings.Replace(onFile(4, "z"), "backend",
		"backend: delay, latency: 10us, of: {backend", 1) + "}"
	before := []string{
		listenAny + rdma(4420, ", tos: 4") + rdma(4421, ""),
		sub(anyHosts, inRAM, onFile(2, "x"), onFile(3, "y"), delayed) +
			other(2, anyHosts, onFile(1, "w")),
	}
	after := []string{
		listenAny + rdma(4420, ", tos: 8") + rdma(4422, ""),
		sub("hosts: ["+hostA+"]", inRAM, onFile(2, "y"), onFile(3, "x"), onFile(4, "z"),
			onFile(5, "v")) + other(3, anyHosts, onFile(1, "w")),
	}
	l.Harness = newServer(t, app.Options{
		Config: l.parse(before[0], before[1]), Verbs: stack, Retry: time.Millisecond,
		OpenDevice: func(n *config.Namespace) (backend.Device, error) {
			if fail.now() {
				return nil, errOpen
			}
			return volumes.Open(n, l.Current().Disks, l.Log.Logger())
		},
	})
	testutil.Must(t, l.Start())
	look := func(names ...string) string {
		t.Helper()
		c := testutil.Value(l.connect(testNQN, hostA, 0))(t)
		defer c.Close()
		listeners := l.Listeners().States()
		for i := range listeners {
			listeners[i].Connections = 0 // the last one may still be closing
		}
		seen := fmt.Sprint(listeners, l.Subsystems()[0].Hosts)
		for nsid, name := range names {
			testutil.Equal(t, l.first(c, uint32(nsid+2)), name, "namespace %d is on", nsid+2)
		}
		return seen
	}
	wanted := l.parse(after[0], after[1])
	plan := fmt.Sprint(l.Plan(wanted))
	for n := 1; ; n++ {
		was := look("x", "y", "z")
		fail.set(n, false)
		_, err := l.Apply(wanted)
		failed := fail.reached()
		fail.set(0, false)
		testutil.MustTrue(t, failed == (err != nil), "operation %d: %v", n, err)
		if !failed {
			t.Logf("%d operations", n-1)
			return
		}
		testutil.True(t, !strings.Contains(err.Error(), "undone"), "operation %d: %v", n, err)
		is := look("x", "y", "z")
		testutil.True(t, is == was, "operation %d: %s, %s before", n, is, was)
		again := fmt.Sprint(l.Plan(wanted))
		testutil.True(t, again == plan, "operation %d: planned %s, %s before", n, again, plan)
		fail.set(n, true)
		testutil.True(t, testutil.Err(l.Apply(wanted)) != nil,
			"operation %d and all later ones failed, and Apply succeeded", n)
		fail.set(0, false)
		l.apply(after[0], after[1])
		look("y", "x", "z", "v")
		l.apply(before[0], before[1])
	}
}

// faultyLive is a server with namespaces in memory, and a function that opens their storage.
type faultyLive struct {
	*live
	open atomic.Pointer[func(n *config.Namespace) (backend.Device, error)]
}

var errOpen = errors.New("no storage today")

// counted is storage that counts how often it is closed.
type counted struct {
	*backendtest.Faulty
	blockSize int
	closed    atomic.Int32
}

func (d *counted) Close() error {
	d.closed.Add(1)
	return d.Faulty.Close()
}

func (d *counted) Info() backend.Info {
	i := d.Faulty.Info()
	if d.blockSize != 0 {
		i.BlockSize = d.blockSize
	}
	return i
}

func newCounted(t *testing.T) *counted {
	t.Helper()
	dev := testutil.Value(ram.Open(ram.Config{Size: 1 << 20, BlockSize: 512}))(t)
	return &counted{Faulty: backendtest.NewFaulty(dev)}
}

func newFaultyLive(t *testing.T, listeners, subsystems string) *faultyLive {
	t.Helper()
	l := &faultyLive{live: &live{t: t, dir: t.TempDir()}}
	l.opens(func(*config.Namespace) (backend.Device, error) { return newCounted(t), nil })
	open := func(n *config.Namespace) (backend.Device, error) { return (*l.open.Load())(n) }
	l.Harness = started(t, app.Options{
		Config: l.parse(listeners, subsystems), Retry: time.Millisecond, OpenDevice: open,
	})
	return l
}

func (l *faultyLive) opens(open func(n *config.Namespace) (backend.Device, error)) {
	l.open.Store(&open)
}
