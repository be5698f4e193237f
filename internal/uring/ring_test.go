package uring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
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

// rig is a ring on the test's own thread, with an eventfd and memory off the heap.
type rig struct {
	*Ring
	t    testing.TB
	bell int
	b    []byte
	file *os.File
	f    File
}

func newRig(t testing.TB, cfg Config) *rig { return newSmallRig(t, cfg, entries, slots) }

func newSmallRig(t testing.TB, cfg Config, entries, slots int) *rig {
	t.Helper()
	runtime.LockOSThread()
	g := &rig{t: t}
	var err error
	if g.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	if g.b, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE); err != nil {
		t.Fatal(err)
	}
	cfg.EventFD, cfg.Memory = g.bell, g.b[:512<<10]
	if g.Ring, err = create(cfg, entries, slots); err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	if g.file, err = os.OpenFile(filepath.Join(t.TempDir(), "file"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.file.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	g.f = g.AddFile(int(g.file.Fd()))
	t.Cleanup(func() {
		if err := errors.Join(g.RemoveFile(g.f), g.Close(), g.file.Close(), unix.Close(g.bell), unix.Munmap(g.b)); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
	return g
}

// drain polls until everything is back; it sleeps as a reactor does.
func (g *rig) drain() {
	g.t.Helper()
	for end := time.Now().Add(10 * time.Second); g.Outstanding() > 0; {
		if g.Poll() > 0 || !g.Arm() {
			continue
		}
		fds := []unix.PollFd{{Fd: int32(g.bell), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, int(time.Until(end).Milliseconds())); err != nil && err != unix.EINTR || n == 0 && err == nil {
			g.t.Fatalf("no wake-up: %v; %d outstanding", err, g.Outstanding())
		}
		var count [8]byte
		_, _ = unix.Read(g.bell, count[:])
	}
}

func (g *rig) do(op Op) int32 {
	g.t.Helper()
	var c result
	if !g.Start(g.f, &op, &c) {
		g.t.Fatal("the ring is full")
	}
	g.drain()
	if c.n != 1 {
		g.t.Fatalf("%d completions", c.n)
	}
	return c.res
}

// each runs fn with every mode that the kernel has, from the best to the plainest, and with the kernel's thread.
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
	t.Run("SQPOLL", func(t *testing.T) { fn(t, Config{SQPoll: true, SQIdle: time.Millisecond}) })
}

func TestOperations(t *testing.T) {
	each(t, func(t *testing.T, cfg Config) {
		g := newRig(t, cfg)
		if g.Memory() != 512<<10 || !g.f.fixed {
			t.Logf("memory registered: %d bytes; file registered: %v", g.Memory(), g.f.fixed)
		}
		for _, at := range []int{0, 256 << 10, 512<<10 - 2048, 768 << 10} { // registered, across the end of it, not registered
			w, r := g.b[at:at+4096], g.b[at+8192:at+8192+4096]
			rnd := rand.NewChaCha8([32]byte{byte(at >> 16)})
			_, _ = rnd.Read(w)
			if res := g.do(Write(w, int64(at), 0)); res != 4096 {
				t.Fatalf("write: %d", res)
			}
			clear(r)
			if res := g.do(Read(r, int64(at))); res != 4096 || !bytes.Equal(r, w) {
				t.Fatalf("read: %d, same %v", res, bytes.Equal(r, w))
			}
			iov := []unix.Iovec{{Base: &r[0], Len: 100}, {Base: &r[200], Len: 3996}}
			if res := g.do(Writev(iov, 4096, unix.RWF_DSYNC)); res != 4096 {
				t.Fatalf("writev: %d", res)
			}
			clear(w)
			iov = []unix.Iovec{{Base: &w[0], Len: 100}, {Base: &w[200], Len: 3896}}
			if res := g.do(Readv(iov, 4096)); res != 3996 || !bytes.Equal(w[:100], r[:100]) || !bytes.Equal(w[200:4096], r[200:4096]) {
				t.Fatalf("readv: %d", res)
			}
		}
		if res := g.do(Datasync()); res != 0 {
			t.Errorf("fdatasync: %d", res)
		}
		if res := g.do(Fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20)); res != 0 {
			t.Errorf("fallocate: %d", res)
		}
		b := g.b[:4096]
		if res := g.do(Read(b, 256<<10)); res != 4096 || bytes.Count(b, []byte{0}) != 4096 {
			t.Errorf("after punching a hole: %d", res)
		}
		if res := g.do(Read(b, 2<<20)); res != 0 {
			t.Errorf("read behind the end: %d", res)
		}
		if res := g.do(Discard(0, 4096)); res >= 0 {
			t.Errorf("discard on a file: %d", res)
		}
		if res := g.do(Nop()); res != 0 {
			t.Errorf("nop: %d", res)
		}
	})
}

// TestFull: more than the submission queue holds is submitted on the way, more than there are slots is refused, and Completers start
// the rest.
// TestCommands mixes commands, which /dev/null takes from Linux 6.4 on and regular files refuse, with transfers.
func TestCommands(t *testing.T) {
	g := newSmallRig(t, Config{Commands: true}, 4, 16)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fill := bytes.Repeat([]byte{0xA5}, commandRoom)
	write, read := Write(g.b[:512], 0, 0), Read(g.b[4096:4608], 0)
	copy(g.b, "what is written")
	var refused, taken, other result
	other.res = -1
	for range 20 { // around the queue more than once
		clear(g.b[4096:4608])
		for _, start := range []func() bool{
			func() bool { return g.Start(g.f, &write, &other) },
			func() bool { return g.StartCommand(g.f, 7, fill, g.b[:512], &refused) },
			func() bool { return g.StartCommand(File{fd: int32(null.Fd())}, 7, fill, nil, &taken) },
		} {
			if !start() {
				t.Fatal("full")
			}
		}
		g.drain()
		if refused.res != -int32(unix.EOPNOTSUPP) || taken.res != 0 && taken.res != -int32(unix.EOPNOTSUPP) || other.res != 512 {
			t.Fatalf("a file: %d, /dev/null: %d, a write: %d", refused.res, taken.res, other.res)
		}
		if !g.Start(g.f, &read, &other) {
			t.Fatal("full")
		}
		if g.drain(); other.res != 512 || !bytes.Equal(g.b[:512], g.b[4096:4608]) {
			t.Fatalf("a read: %d", other.res)
		}
	}
	if refused.n != 20 || taken.n != 20 || other.n != 40 {
		t.Errorf("%d, %d and %d completions", refused.n, taken.n, other.n)
	}
}

// TestCommandEntry looks at the entry that the kernel would see.
func TestCommandEntry(t *testing.T) {
	g := newRig(t, Config{Commands: true})
	payload := make([]byte, commandRoom)
	for i := range payload {
		payload[i] = byte(i + 1)
	}
	for _, data := range [][]byte{nil, g.b[8192:12288], g.b[600<<10:][:4096]} { // none, registered, not registered
		var c result
		g.sqes[2*g.tail+1] = sqe{opcode: 0xFF}
		if !g.StartCommand(g.f, 0xC0484E80, payload, data, &c) {
			t.Fatal("full")
		}
		e := unsafe.Slice((*byte)(unsafe.Pointer(&g.sqes[2*(g.tail-1)])), 128)
		fixed := len(data) > 0 && &data[0] == &g.b[8192]
		if e[0] != opCommand || binary.LittleEndian.Uint32(e[8:]) != 0xC0484E80 || !bytes.Equal(e[48:], payload) || (e[28] == commandFixed) != fixed {
			t.Errorf("registered %v: % x", fixed, e)
		}
		g.drain()
	}
}

func TestFull(t *testing.T) {
	each(t, func(t *testing.T, cfg Config) {
		const slots, total = 64, 1000
		g := newSmallRig(t, cfg, 8, slots)
		nop := Nop()
		started, finished := 0, 0
		var c result
		c.then = func() {
			finished++
			if started < total && g.Start(g.f, &nop, &c) {
				started++
			}
		}
		for started < total {
			before := started
			for started < total && g.Start(g.f, &nop, &c) {
				started++
			}
			if !cfg.SQPoll && before == 0 && started != slots {
				t.Fatalf("%d taken, %d slots", started, slots)
			}
			g.Poll()
		}
		g.drain()
		if finished != total || g.Outstanding() != 0 {
			t.Errorf("%d of %d finished, %d outstanding", finished, total, g.Outstanding())
		}
	})
}

// TestOverflow: completions for which there is no room are kept by the kernel and come with the next polls.
func TestOverflow(t *testing.T) {
	each(t, func(t *testing.T, cfg Config) {
		g := newSmallRig(t, cfg, 8, 8) // 16 completions
		const total = 200
		g.slots = make([]Completer, total)
		g.free = nil
		for i := range total {
			g.free = append(g.free, int32(i))
		}
		var c result
		nop := Nop()
		for range total {
			for !g.Start(g.f, &nop, &c) {
				runtime.Gosched()
				if !cfg.SQPoll && len(g.free) > 0 {
					g.enter(enterGetEvents) // refused while completions wait
					g.Poll()
				}
			}
		}
		g.drain()
		if c.n != total {
			t.Errorf("%d of %d completions", c.n, total)
		}
	})
}

// TestArm: an armed ring rings the bell for what finishes later; one that polls does not.
func TestArm(t *testing.T) {
	each(t, func(t *testing.T, cfg Config) {
		g := newRig(t, cfg)
		pipe := make([]int, 2)
		if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = unix.Close(pipe[0]), unix.Close(pipe[1]) }()
		f := g.AddFile(pipe[0])
		var c result
		read := Read(g.b[:1], -1)
		count := func() bool {
			var b [8]byte
			_, err := unix.Read(g.bell, b[:])
			return err == nil
		}
		for round := range 50 {
			if !g.Start(f, &read, &c) {
				t.Fatal("full")
			}
			g.Poll()
			if armed := round%2 == 0; armed {
				if !g.Arm() {
					t.Fatal("there is nothing to poll for")
				}
			}
			if _, err := unix.Write(pipe[1], []byte{1}); err != nil {
				t.Fatal(err)
			}
			if round%2 == 0 {
				fds := []unix.PollFd{{Fd: int32(g.bell), Events: unix.POLLIN}}
				for {
					n, err := unix.Poll(fds, 5000)
					if err == unix.EINTR {
						continue
					}
					if n != 1 {
						t.Fatalf("round %d: the bell did not ring", round)
					}
					break
				}
				count()
			}
			for end := time.Now().Add(5 * time.Second); c.n == round; {
				if g.Poll(); time.Now().After(end) {
					t.Fatal("no completion")
				}
			}
			if count() {
				t.Errorf("round %d: the bell rang while polling", round)
			}
		}
		if err := g.RemoveFile(f); err != nil {
			t.Error(err)
		}
	})
}

// TestRandom keeps the ring full of writes and reads of random pieces and compares all with a model.
func TestRandom(t *testing.T) {
	each(t, func(t *testing.T, cfg Config) {
		g := newSmallRig(t, cfg, 16, 32)
		const pieces, piece = 32, 8192
		rnd := rand.New(rand.NewPCG(1, 2))
		want := make([]byte, pieces*piece)
		for range 100 {
			var cs [pieces]result
			var ops [pieces]Op
			for i := range ops {
				b := g.b[i*piece:][:piece]
				if ops[i] = Read(b, int64(i*piece)); rnd.IntN(2) == 0 {
					for j := range b {
						b[j] = byte(rnd.Uint32())
					}
					copy(want[i*piece:], b)
					ops[i] = Write(b, int64(i*piece), 0)
				} else {
					clear(b)
				}
				for !g.Start(g.f, &ops[i], &cs[i]) {
					g.Poll()
				}
			}
			g.drain()
			if !bytes.Equal(g.b[:len(want)], want) {
				t.Fatal("data differ")
			}
		}
	})
}

func TestCloseRefusesOutstanding(t *testing.T) {
	g := newRig(t, Config{})
	nop := Nop()
	var c result
	g.Start(g.f, &nop, &c)
	if err := g.Close(); err == nil || !strings.Contains(err.Error(), "1 operations are outstanding") {
		t.Errorf("%v", err)
	}
	g.drain()
}

// TestAnotherThread: a ring that is used by a second thread says so instead of losing what was started.
func TestAnotherThread(t *testing.T) {
	g := newRig(t, Config{})
	if g.flags&setupSingleIssuer == 0 {
		t.Skip("this kernel has no SINGLE_ISSUER")
	}
	g.do(Nop())
	ended := make(chan any)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { ended <- recover() }()
		g.enter(enterGetEvents)
	}()
	if got := <-ended; got == nil {
		t.Error("no panic")
	}
}

func TestShared(t *testing.T) {
	g := newRig(t, Config{})
	other, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(other) }()
	var rings []*Ring
	for _, cfg := range []Config{{EventFD: g.bell}, {EventFD: g.bell}, {EventFD: other}, {EventFD: g.bell, IOPoll: true}} {
		r, err := Acquire(cfg)
		if err != nil {
			t.Fatal(err)
		}
		rings = append(rings, r)
	}
	if rings[0] != rings[1] || rings[0] == rings[2] || rings[0] == rings[3] {
		t.Error("rings are not shared by reactor and kind")
	}
	for _, r := range rings {
		if err := r.Release(); err != nil {
			t.Error(err)
		}
	}
	if len(shared.rings) != 0 {
		t.Errorf("%d rings are left", len(shared.rings))
	}
	if _, err := Acquire(Config{EventFD: 1 << 20}); err == nil {
		t.Error("a ring with a bad eventfd")
	}
	if len(shared.rings) != 0 {
		t.Errorf("%d rings are left after a failure", len(shared.rings))
	}
}

func TestRefusal(t *testing.T) {
	for e, want := range map[syscall.Errno]string{unix.ENOSYS: "Linux 5.10", unix.EPERM: "io_uring_setup", unix.ENOMEM: "ulimit -l"} {
		if err := refusal(e); !errors.Is(err, e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
}

func TestNoAlloc(t *testing.T) {
	g := newRig(t, Config{})
	var c result
	read := Read(g.b[:4096], 0)
	if n := testing.AllocsPerRun(100, func() {
		for range 32 {
			g.Start(g.f, &read, &c)
		}
		for g.Outstanding() > 0 {
			if g.Poll() == 0 {
				g.Arm()
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkNop32(b *testing.B) {
	g := newRig(b, Config{})
	var c result
	nop := Nop()
	for b.Loop() {
		for range 32 {
			g.Start(g.f, &nop, &c)
		}
		g.Poll()
	}
	g.drain()
}
