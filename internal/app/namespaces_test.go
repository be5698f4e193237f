package app_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// TestEmptyDevice: a block device without a medium, such as a loop device without a file, counts as
// missing.
func TestEmptyDevice(t *testing.T) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no loop device: %v", err)
	}
	t.Cleanup(func() { _ = control.Close() })
	n := 1000 + os.Getpid()%100000 // losetup --find does not choose it
	if err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, n); err != nil {
		t.Skipf("no loop device: %v", err)
	}
	device, backing := fmt.Sprintf("/dev/loop%d", n), filepath.Join(t.TempDir(), "backing")
	t.Cleanup(func() { // after the server has closed it
		_ = exec.Command("losetup", "--detach", device).Run()
		_ = unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, n)
	})
	testutil.Must(t, os.WriteFile(backing, make([]byte, 1<<20), 0o600))
	text := strings.Replace(validFile, "backend: ram, size: 16MiB", "backend: block, path: "+
		device, 1)
	var said strings.Builder
	err = check.File(writeConfig(t, text), nil, &said)
	testutil.True(t, err == nil && strings.Contains(said.String(), "the namespace is pending"),
		"check: %v, %s", err, said.String())
	up := make(chan uint32, 1)
	started(t, app.Options{
		Config: harness.Parse(t, text), Retry: time.Millisecond,
		NamespaceUp: func(_ string, nsid uint32) { up <- nsid },
	})
	if out, err := exec.Command("losetup", device, backing).CombinedOutput(); err != nil {
		t.Skipf("no loop device: %v: %s", err, out)
	}
	testutil.Receive(t, "the namespace is up", up)
}

// TestControlDisks: a client sees the disks of this machine.
func TestControlDisks(t *testing.T) {
	_, c := controlled(t, app.Options{}, anyPort)
	testutil.Until(t, "the same list", func() bool { // the health of a disk may take some time
		want := testutil.Value(volumes.ListDisks(nil))(t)
		list, err := control.GetDisks.From(t.Context(), c)
		return err == nil && len(list) == len(want)
	})
}

const (
	inRAM    = "{nsid: 1, backend: ram, size: 1MiB}"
	inMount  = "{nsid: 2, backend: file, path: %DIR%/mount/disk, size: 64KiB}"
	anyHosts = "allow_any_host: true"
)

func (l *live) mkdir(name string) {
	l.t.Helper()
	testutil.Must(l.t, os.Mkdir(filepath.Join(l.dir, name), 0o700))
}

func (l *live) wantUp(up <-chan uint32) {
	l.t.Helper()
	testutil.Receive(l.t, "the namespace is served", up)
}

// TestAppearsAtStart: storage may appear before everything else has been started.
func TestAppearsAtStart(t *testing.T) {
	l, stack := &live{t: t, dir: t.TempDir()}, newStack(t, "127.0.0.1")
	up := make(chan uint32, 1)
	stack.onListen = func() {
		l.mkdir("mount")
		l.wantUp(up)
	}
	l.Harness = started(t, app.Options{
		Config: l.parse(onRDMA("tos: 4"), sub(anyHosts, inRAM, inMount)), Verbs: stack,
		Retry: time.Millisecond, NamespaceUp: func(_ string, nsid uint32) { up <- nsid },
	})
}

// TestBlockedCallback: a program that handles the callback only after a change, or a stop, delays
// neither.
func TestBlockedCallback(t *testing.T) {
	l := &live{t: t, dir: t.TempDir()}
	called, told, end := make(chan bool, 2), make(chan struct{}), make(chan bool)
	l.Harness = newServer(t, app.Options{
		Config: l.parse(listenAny, sub(anyHosts, inRAM, inMount)), Retry: time.Millisecond,
		NamespaceUp: func(string, uint32) {
			called <- true
			<-end
			close(told)
		},
	})
	t.Cleanup(func() { <-told })
	t.Cleanup(func() { close(end) })
	testutil.Must(t, l.Start())
	l.mkdir("mount")
	testutil.Receive(t, "the callback", called)
	wanted, applied := l.parse(listenAny, sub(anyHosts, inRAM)), make(chan error, 1)
	go func() {
		_, err := l.Apply(wanted)
		applied <- err
	}()
	testutil.Check(t, testutil.Receive(t, "the change does not wait for the callback", applied))
}

// TestWatchedChanges: clients, scrapers and the service manager get answers in the middle of
// changes.
func TestWatchedChanges(t *testing.T) {
	t.Parallel()
	l := newLive(t, listenAny, sub(anyHosts, inRAM))
	l.file("x")
	l.file("y")
	metrics := fmt.Sprintf("%s]\nmetrics: {listen: '127.0.0.1:%d'}\n#", listenAny,
		testutil.FreePort(t))
	waiting := listenAny + ", {transport: tcp, address: 192.0.2.1, port: 4420}"
	configs := [][2]string{
		{listenAny, sub(anyHosts, inRAM, onFile(2, "x"), strings.Replace(inMount, "2", "4", 1))},
		{metrics, sub("hosts: ["+hostA+"]", inRAM, onFile(2, "y"))},
		{waiting, sub(anyHosts, inRAM, onFile(3, "x"), onFile(2, "z"))},
		{waiting, sub(anyHosts, onFile(1, "y"))},
	}
	var end atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end.Store(true)
	for _, ask := range []func(){
		l.Look,
		func() { l.Target.Controllers() },
		func() { l.Plan(l.Current()) },
		func() { l.Target.Stats() },
	} {
		wg.Go(func() {
			for !end.Load() {
				ask()
			}
		})
	}
	rounds := testutil.Rounds(1, 4)
	for range rounds {
		for _, c := range configs {
			l.apply(c[0], c[1])
		}
	}
}

// TestStorageThatDoesNotAnswer: a device with a driver that refuses to open it counts as missing.
func TestStorageThatDoesNotAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	const demo = 42 << 8 // major numbers that no driver has
	if err := syscall.Mknod(path, syscall.S_IFBLK|0o600, demo); err != nil {
		t.Skipf("no device: mknod needs CAP_MKNOD: %v", err)
	}
	text := strings.Replace(validFile, "backend: ram, size: 16MiB", "backend: block, path: "+path,
		1)
	s := harness.Start(t, harness.Options{Config: text})
	testutil.Equal(t, len(s.Engine().Volumes.Pending()), 1, "pending namespaces")
}

// TestFewDescriptors: with fewer descriptors than connections the target warns at the start, and
// gives a fix when a connection cannot be accepted.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	child := exec.Command("sh", "-c", "ulimit -n 64; exec \"$0\"", os.Args[0])
	stderr := testutil.Value(child.StderrPipe())(t)
	addr := address(t, startServe(t, child))
	for range 80 {
		c := testutil.Value(net.Dial("tcp", addr))(t)
		defer c.Close()
	}
	log, warned := bufio.NewScanner(stderr), false
	for log.Scan() && !strings.Contains(log.Text(), "too many open files (raise LimitNOFILE=") {
		warned = warned ||
			strings.Contains(log.Text(), "open files, and the limit is 64. Set LimitNOFILE=")
	}
	testutil.True(t, log.Text() != "" && warned, "warned at the start: %v; the last line: %q",
		warned, log.Text())
	_ = child.Process.Signal(syscall.SIGTERM)
	_, _ = io.Copy(io.Discard, stderr)
	testutil.Check(t, child.Wait())
}
