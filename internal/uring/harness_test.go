package uring

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// result counts completions of one Op.
type result struct {
	res  int32
	n    int
	then func()
}

func (c *result) Complete(res int32) {
	c.res = res
	c.n++
	if c.then != nil {
		c.then()
	}
}

// harness is a ring on the thread of the test, with an eventfd and memory outside the heap.
type harness struct {
	*Ring
	t       testing.TB
	eventFD int
	b       []byte
	file    *os.File
	f       File
}

func newHarness(t testing.TB, cfg Config) *harness { return newSmall(t, cfg, entries, slots) }

// newSmall makes a harness with a ring of this size.
func newSmall(t testing.TB, cfg Config, entries, slots int) *harness {
	t.Helper()
	if err := Available(); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skipf("io_uring is missing: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	g := &harness{t: t}
	var err error
	if g.eventFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	if g.b, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANONYMOUS|unix.MAP_PRIVATE); err != nil {
		t.Fatal(err)
	}
	cfg.EventFD, cfg.Memory = g.eventFD, g.b[:512<<10]
	if g.Ring, err = create(cfg, entries, slots); err != nil {
		t.Fatal(err)
	}
	if g.file, err = os.OpenFile(filepath.Join(t.TempDir(), "file"), os.O_CREATE|os.O_RDWR,
		0o600); err != nil {
		t.Fatal(err)
	}
	testutil.Must(t, g.file.Truncate(1<<20))
	g.f = g.AddFile(int(g.file.Fd()))
	t.Cleanup(func() {
		testutil.Check(t, errors.Join(g.RemoveFile(g.f), g.Close(), g.file.Close(),
			unix.Close(g.eventFD), unix.Munmap(g.b)))
		runtime.UnlockOSThread()
	})
	return g
}

// drain polls until everything has completed. It sleeps as a reactor does.
func (g *harness) drain() {
	g.t.Helper()
	for g.Outstanding() > 0 {
		if g.Poll() > 0 || !g.Arm() {
			continue
		}
		fds := []unix.PollFd{{Fd: int32(g.eventFD), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, int(testutil.Patience.Milliseconds())); err != nil &&
			err != unix.EINTR || n == 0 && err == nil {
			g.t.Fatalf("no wake-up: %v; %d outstanding", err, g.Outstanding())
		}
		var count [8]byte
		_, _ = unix.Read(g.eventFD, count[:])
	}
}

func (g *harness) do(op Op) int32 {
	g.t.Helper()
	var c result
	testutil.MustTrue(g.t, g.Start(g.f, &op, &c), "the ring is full")
	g.drain()
	testutil.MustEqual(g.t, c.n, 1, "completions")
	return c.res
}

// each runs fn on its own thread with every mode that the kernel supports.
func each(t *testing.T, fn func(t *testing.T, cfg Config)) {
	all := modes
	defer func() { modes = all }()
	for i := range all {
		t.Run(fmt.Sprintf("mode %d", i), func(t *testing.T) {
			modes = all[i : i+1]
			fn(t, Config{})
		})
	}
	modes = all
	t.Run("commands", func(t *testing.T) { fn(t, Config{Commands: true}) })
}
