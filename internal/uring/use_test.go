package uring

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestArm: completions of an armed ring write to the eventfd, completions of a polling ring do not.
func TestArm(t *testing.T) {
	each(t, func(t *testing.T, cfg Config) {
		g := newHarness(t, cfg)
		pipe := make([]int, 2)
		testutil.Must(t, unix.Pipe2(pipe, unix.O_CLOEXEC))
		defer func() { _, _ = unix.Close(pipe[0]), unix.Close(pipe[1]) }()
		f := g.AddFile(pipe[0])
		var c result
		read := Read(g.b[:1], -1)
		count := func() bool {
			var b [8]byte
			_, err := unix.Read(g.eventFD, b[:])
			return err == nil
		}
		// The kernel stores a completion first and then checks whether to write to the eventfd. On
		// a busy machine the ring may have been armed again in between.
		const rounds, mostLate = 50, 5
		late := 0
		for round := range rounds {
			testutil.MustTrue(t, g.Start(f, &read, &c), "full")
			g.Poll()
			if armed := round%2 == 0; armed {
				testutil.MustTrue(t, g.Arm(), "there is nothing to poll for")
			}
			testutil.Value(unix.Write(pipe[1], []byte{1}))(t)
			if round%2 == 0 {
				fds := []unix.PollFd{{Fd: int32(g.eventFD), Events: unix.POLLIN}}
				for {
					n, err := unix.Poll(fds, int(testutil.Patience.Milliseconds()))
					if err == unix.EINTR {
						continue
					}
					testutil.MustEqual(t, n, 1, "round %d: the eventfd was not written to", round)
					break
				}
				count()
			}
			for c.n == round { // without a pause, see mostLate
				g.Poll()
			}
			if count() {
				late++
			}
		}
		testutil.True(t, late <= mostLate,
			"the eventfd was written to while polling in %d of %d rounds", late, rounds)
		testutil.Check(t, g.RemoveFile(f))
	})
}

// TestRandom keeps the ring full of writes and reads of random pieces and compares all with a
// model.
func TestRandom(t *testing.T) {
	each(t, func(t *testing.T, cfg Config) {
		g := newSmall(t, cfg, 16, 32)
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
			testutil.MustTrue(t, bytes.Equal(g.b[:len(want)], want), "data differ")
		}
	})
}

func TestCloseRefusesOutstanding(t *testing.T) {
	g := newHarness(t, Config{})
	idle := Op{}
	var c result
	g.Start(g.f, &idle, &c)
	testutil.Fails(t, g.Close(), "1 operations are outstanding", "")
	g.drain()
}

// TestAnotherThread: using a ring from a second thread panics, so that no operation is lost.
func TestAnotherThread(t *testing.T) {
	g := newHarness(t, Config{})
	if g.flags&setupSingleIssuer == 0 {
		t.Skip("IORING_SETUP_SINGLE_ISSUER is missing (Linux 6.0)")
	}
	g.do(Op{})
	ended := make(chan any)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { ended <- recover() }()
		g.enter(enterGetEvents)
	}()
	testutil.True(t, <-ended != nil, "no panic")
}

func TestShared(t *testing.T) {
	g := newHarness(t, Config{})
	other := testutil.Value(unix.Eventfd(0, unix.EFD_CLOEXEC))(t)
	defer func() { _ = unix.Close(other) }()
	var rings []*Ring
	for _, cfg := range []Config{
		{EventFD: g.eventFD},
		{EventFD: g.eventFD},
		{EventFD: other},
		{EventFD: g.eventFD, Commands: true},
	} {
		r := testutil.Value(Acquire(cfg))(t)
		rings = append(rings, r)
	}
	testutil.True(t, rings[0] == rings[1] && rings[0] != rings[2] && rings[0] != rings[3],
		"rings are not shared by reactor and kind")
	for _, r := range rings {
		testutil.Check(t, r.Release())
	}
	testutil.Equal(t, len(shared.rings), 0, "rings are left")
	testutil.True(t, testutil.Err(Acquire(Config{EventFD: 1 << 20})) != nil,
		"a ring with a bad eventfd")
	testutil.Equal(t, len(shared.rings), 0, "rings are left after a failure")
}

func TestRefusal(t *testing.T) {
	for e, want := range map[syscall.Errno]string{
		unix.ENOSYS: "Linux 5.10",
		unix.EPERM:  "io_uring_setup", unix.ENOMEM: "ulimit -l",
	} {
		err := refusal(e)
		testutil.True(t, errors.Is(err, e) && strings.Contains(err.Error(), want), "%v", err)
	}
}

func TestNoAlloc(t *testing.T) {
	g := newHarness(t, Config{})
	var c result
	read := Read(g.b[:4096], 0)
	if n := testutil.AllocsPerRun(100, func() {
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

// TestIdle: while nothing is outstanding, the first operation is submitted at once and further ones
// in growing batches. Otherwise all wait for the Poll.
func TestIdle(t *testing.T) {
	g := newHarness(t, Config{})
	var p [2]int
	testutil.Must(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	var c result
	start := func(f File, op Op, pending ...uint32) {
		t.Helper()
		for i, want := range pending {
			testutil.MustTrue(t, g.Start(f, &op, &c), "the ring is full")
			testutil.MustEqual(t, g.pending, want, "wait after operation %d", i)
		}
	}
	g.Poll()
	for range 2 {
		start(g.f, Op{}, 0, 1, 2, 3, 0, 1, 2)
		g.drain()
	}
	start(File{fd: int32(p[0])}, Read(g.b[:1], 0), 0)
	g.Poll()
	start(g.f, Op{}, 1, 2, 3, 4, 5)
	testutil.Value(unix.Write(p[1], []byte{0}))(t)
	g.drain()
	want := 2*7 + 1 + 5
	testutil.True(t, c.n == want, "%d completions, want %d", c.n, want)
	testutil.Check(t, errors.Join(unix.Close(p[0]), unix.Close(p[1])))
}

func BenchmarkNop32(b *testing.B) {
	g := newHarness(b, Config{})
	var c result
	idle := Op{}
	for b.Loop() {
		for range 32 {
			g.Start(g.f, &idle, &c)
		}
		g.Poll()
	}
	g.drain()
}
