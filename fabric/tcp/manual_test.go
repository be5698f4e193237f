package tcp

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// testPool makes a pool with the same reserve as in the program.
func testPool(a *mem.Arena) *mem.Pool { return mem.NewPool(a, min(a.Available()/8, 4<<20)) }

// manualLoop is a fabric.Loop that runs only on request of a test, with a clock that only the test
// moves.
type manualLoop struct {
	now    int64
	posts  []func()
	timers []manualTimer
	fns    map[int]func(uint32)
}

type manualTimer struct {
	at int64
	fn func()
}

func (l *manualLoop) Post(fn func()) { l.posts = append(l.posts, fn) }
func (l *manualLoop) Wake()          {}
func (l *manualLoop) Watch(fd int, _ uint32, fn func(uint32)) error {
	l.fns[fd] = fn
	return nil
}
func (l *manualLoop) Unwatch(fd int) error { delete(l.fns, fd); return nil }
func (l *manualLoop) Now() int64           { return l.now }
func (l *manualLoop) Clock() int64         { return l.now }
func (l *manualLoop) After(d int64, fn func()) (stop func()) {
	l.timers = append(l.timers, manualTimer{l.now + d, fn})
	return func() {}
}

// advance moves the clock and runs the timers that are due.
func (l *manualLoop) advance(d time.Duration) {
	l.now += d.Nanoseconds()
	due := l.timers
	l.timers = nil
	for _, t := range due {
		if t.at <= l.now {
			t.fn()
		} else {
			l.timers = append(l.timers, t)
		}
	}
}

// manual is a group that is polled only on request of a test, with one connection over a socket
// pair: everything happens on the goroutine of the test.
type manual struct {
	tb    testing.TB
	loop  *manualLoop
	t     *Transport
	g     *Group
	d     *fabrictest.Disk
	arena *mem.Arena
	peer  int // the host's end, -1 when closed
	in    []byte
	taken []mem.Segment // by exhaust
}

func newManual(tb testing.TB, o options) *manual {
	tb.Helper()
	if o.arena == 0 {
		o.arena = 4 << 20
	}
	o.cfg.Log = quiet
	arena := testutil.Value(mem.NewArena("test data", o.arena))(tb)
	h := &manual{
		tb: tb, loop: &manualLoop{now: 1, fns: make(map[int]func(uint32))}, t: New(o.cfg),
		d: newDisk(tb, &o), arena: arena,
		peer: -1, in: make([]byte, 64<<10),
	}
	fg := testutil.Value(
		h.t.NewGroup(fabric.GroupConfig{Loop: h.loop, Handler: h.d, Memory: testPool(arena)}))(tb)
	h.g = fg.(*Group)
	return h
}

// accepted returns a connection as the listener makes it.
func (h *manual) accepted() *conn {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		0)
	testutil.Must(h.tb, err)
	for _, fd := range fds {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20)
	}
	h.peer = fds[1]
	c := &conn{t: h.t, fd: fds[0], accepted: time.Now(), info: fabric.QueueInfo{
		MaxDepth: h.t.cfg.MaxDepth, InCapsuleSize: h.t.cfg.InCapsuleSize,
	}}
	testutil.Must(h.tb, c.admit())
	return c
}

// open makes a connection; the previous one must be ended.
func (h *manual) open() {
	testutil.Must(h.tb, h.g.Adopt(h.accepted()))
	h.turn()
}

// turn runs posts and polls until nothing happens, and no socket has an event.
func (h *manual) turn() {
	for {
		posts := h.loop.posts
		h.loop.posts = nil
		for _, fn := range posts {
			fn()
		}
		if h.g.Poll(64) == 0 && len(h.loop.posts) == 0 {
			if h.g.pollEvents(); h.g.Poll(64) == 0 && len(h.loop.posts) == 0 {
				return
			}
		}
	}
}

// send sends bytes to the target and lets it work.
func (h *manual) send(b []byte) {
	for len(b) > 0 && h.peer >= 0 {
		n, e := sys.Send(h.peer, b, 0)
		if e != 0 && e != unix.EAGAIN {
			return
		}
		b = b[n:]
		h.turn()
	}
}

// recv returns the bytes that the target has sent so far; the slice is valid until the next call.
func (h *manual) recv() []byte {
	have := 0
	for {
		n, e := sys.Recv(h.peer, h.in[have:], 0)
		if n == 0 || e != 0 {
			return h.in[:have]
		}
		if have += n; have == len(h.in) {
			h.in = append(h.in, h.in...)
		}
		h.turn()
	}
}

// hangUp closes the host's end.
func (h *manual) hangUp() {
	if h.peer >= 0 {
		_ = unix.Close(h.peer)
		h.peer = -1
	}
	for q := range h.g.queues.All() {
		q.event(unix.EPOLLIN | unix.EPOLLRDHUP)
	}
	h.turn()
}

// giveBack undoes exhaust.
func (h *manual) giveBack() {
	h.arena.Free(h.taken)
	h.taken = nil
}

// close ends everything, with all connections in case of several, and checks that nothing is left.
func (h *manual) close(peers ...int) {
	h.tb.Helper()
	for _, h.peer = range peers {
		h.hangUp()
	}
	h.hangUp()
	h.d.Release()
	h.turn()
	h.giveBack()
	testutil.Equal(h.tb, h.g.queues.Len(), 0, "connections are left")
	testutil.Check(h.tb, errors.Join(h.g.Close(), h.arena.Close(), h.d.Region.Unmap()))
	testutil.Equal(h.tb, h.t.Usage().Connections, 0, "connections are still counted")
	testutil.Equal(h.tb, h.d.Busy(), 0, "requests are not idle")
	if o, c := h.d.Opened.Load(), h.d.Closed.Load(); o != c {
		h.tb.Errorf("%d sessions opened, %d closed", o, c)
	}
}
