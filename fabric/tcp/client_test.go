package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// client is a host that can send anything.
type client struct {
	tb testing.TB
	hosttest.Wire
}

// dial opens a connection without ICReq.
func (tg *target) dial(tb testing.TB) *client {
	tb.Helper()
	c := testutil.Value(net.Dial("tcp", tg.addr()))(tb)
	tb.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(testutil.Patience))
	return &client{tb, hosttest.Wire{Conn: c, P: pdu.Params{InCapsule: 8192}}}
}

// icReq sends an ICReq for p and reads the answer.
func (c *client) icReq(p pdu.Params) {
	c.tb.Helper()
	testutil.Must(c.tb, c.Greet(p))
}

// served is serve with a connection.
func served(tb testing.TB, o options, p pdu.Params, depth int, cattr nvme.CATTR,
) (*target, *client) {
	tb.Helper()
	tg := serve(tb, o)
	return tg, tg.connect(tb, p, depth, cattr)
}

// joined is newManual with a connection.
func joined(tb testing.TB, o options, p pdu.Params, depth int) (*manual, *client) {
	tb.Helper()
	h := newManual(tb, o)
	return h, h.connect(p, depth)
}

// connect makes an I/O queue of the given size ready.
func (tg *target) connect(tb testing.TB, p pdu.Params, depth int, cattr nvme.CATTR) *client {
	tb.Helper()
	c := tg.dial(tb)
	c.icReq(p)
	c.send(c.connectPDU(1, depth, cattr))
	c.status(0, nvme.Success)
	return c
}

func (c *client) connectPDU(qid uint16, depth int, cattr nvme.CATTR) []byte {
	var sqe nvme.SQE
	sqe.Connect().Set(qid, uint16(depth-1), cattr, 0)
	sqe.SetFlags(1 << 6)
	sqe.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, nvme.ConnectDataSize)
	return c.Capsule(&sqe, make([]byte, nvme.ConnectDataSize))
}

// rw makes a read or write of n bytes at off. Its SGL is in-capsule if ic is set, otherwise
// transport data.
func rw(op nvme.Opcode, cid uint16, off, n int, ic bool) (sqe nvme.SQE) {
	sqe.SetOpcode(op)
	sqe.SetFlags(1 << 6)
	sqe.SetCID(cid)
	sqe.SetNSID(1)
	sqe.SetCDW64(10, uint64(off/blockSize))
	sqe.SetCDW(12, uint32(n/blockSize-1))
	if ic {
		sqe.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, uint32(n))
	} else {
		sqe.SGL1().SetData(nvme.SGLTransportDataBlock, nvme.SGLSubtypeTransport, 0, uint32(n))
	}
	return sqe
}

// request is the capsule of a command without data in it.
func (c *client) request(op nvme.Opcode, cid uint16, off, n int) []byte {
	sqe := rw(op, cid, off, n, false)
	return c.Capsule(&sqe, nil)
}

// held is a request that the device holds.
func (c *client) held(op nvme.Opcode, cid uint16, off, n int) []byte {
	sqe := rw(op, cid, off, n, false)
	sqe.SetNSID(holdNSID)
	return c.Capsule(&sqe, nil)
}

// inCapsule is the capsule of a write with its data, which is random(seed, n).
func (c *client) inCapsule(cid uint16, off, n, seed int) []byte {
	sqe := rw(nvme.NVMWrite, cid, off, n, true)
	return c.Capsule(&sqe, random(seed, n))
}

// fixHeaderDigest recomputes the header digest of a PDU that a test has damaged.
func (c *client) fixHeaderDigest(b []byte, hlen int) []byte {
	if c.P.HeaderDigest && len(b) >= hlen+4 {
		pdu.PutHeaderDigest(b, hlen)
	}
	return b
}

func (c *client) send(b ...[]byte) {
	c.tb.Helper()
	testutil.MustEqual(c.tb, testutil.Err(c.Write(bytes.Join(b, nil))), nil, "send")
}

func (c *client) recv() hosttest.Message {
	c.tb.Helper()
	m, err := c.Receive()
	testutil.MustTrue(c.tb, err == nil, "receive: %v (type %v)", err, m.Type)
	return m
}

// status reads a CapsuleResp and compares its status, without More and CRD.
func (c *client) status(cid uint16, want nvme.Status) {
	c.tb.Helper()
	m := c.recv()
	testutil.MustTrue(c.tb, m.Type == pdu.TypeCapsuleResp, "got %v %x, want CapsuleResp", m.Type,
		m.Raw)
	cqe := (*pdu.CapsuleResp)(m.Raw).CQE()
	testutil.MustTrue(c.tb, cqe.CID() == cid && cqe.Status() == want, "CID %d: %v, want CID %d: %v",
		cqe.CID(), cqe.Status(), cid, want)
}

// term reads PDUs until a C2HTermReq, compares it, and expects the end of the stream.
func (c *client) term(want pdu.Fault) {
	c.tb.Helper()
	for {
		m := c.recv()
		if m.Type != pdu.TypeC2HTermReq {
			continue
		}
		testutil.MustEqual(c.tb, (*pdu.TermReq)(m.Raw).Fault(), want, "C2HTermReq")
		break
	}
	c.end()
}

// end expects the end of the stream and nothing before it.
func (c *client) end() {
	c.tb.Helper()
	if m, err := c.Receive(); !errors.Is(err, hosttest.ErrEnd) {
		c.tb.Fatalf("got %v %x, %v; want the end", m.Type, m.Raw, err)
	}
	_ = c.Close()
}

// readBlocks reads n bytes at off from the namespace.
func (c *client) readBlocks(cid uint16, off, n int) []byte {
	c.tb.Helper()
	c.send(c.request(nvme.NVMRead, cid, off, n))
	var data []byte
	for {
		m := c.recv()
		switch m.Type {
		case pdu.TypeC2HData:
			d := (*pdu.Data)(m.Raw)
			testutil.MustTrue(c.tb, d.CCCID() == cid && int(d.DATAO()) == len(data), "C2HData %x",
				m.Raw)
			data = append(data, m.Data...)
			if f := d.Header().Flags(); f&pdu.Success != 0 {
				return data
			}
		case pdu.TypeCapsuleResp:
			cqe := (*pdu.CapsuleResp)(m.Raw).CQE()
			testutil.MustTrue(c.tb, cqe.CID() == cid && cqe.Status().OK(), "read: CID %d, %v",
				cqe.CID(), cqe.Status())
			return data
		default:
			c.tb.Fatalf("got %v %x", m.Type, m.Raw)
		}
	}
}

// r2t reads an R2T for a command.
func (c *client) r2t(cid uint16, n int) (ttag uint16) {
	c.tb.Helper()
	m := c.recv()
	testutil.MustTrue(c.tb, m.Type == pdu.TypeR2T, "got %v %x, want R2T", m.Type, m.Raw)
	r := (*pdu.Data)(m.Raw)
	testutil.MustTrue(c.tb, r.CCCID() == cid && r.DATAO() == 0 && int(r.DATAL()) == n, "R2T %x",
		m.Raw)
	return r.TTAG()
}

// random makes n bytes that depend on seed.
func random(seed, n int) []byte {
	b, from := make([]byte, n), [32]byte{}
	binary.LittleEndian.PutUint64(from[:], uint64(seed))
	_, _ = rand.NewChaCha8(from).Read(b)
	return b
}

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

// target is a transport with one group on one running reactor.
type target struct {
	tb    testing.TB
	t     *Transport
	r     *reactor.Reactor
	g     *Group
	d     *fabrictest.Disk
	arena *mem.Arena
	l     fabric.Listener
	clock *aheadLoop
	stop  func()
}

const (
	blockSize = fabrictest.DiskBlock
	diskSize  = fabrictest.DiskSize
	holdNSID  = fabrictest.HoldNSID
)

// newDisk returns the handler of a target.
func newDisk(tb testing.TB, o *options) *fabrictest.Disk {
	d := fabrictest.NewDisk(tb)
	fillPattern(d.Region.Bytes())
	d.ZeroCopyReads, d.Piece, d.Hold = o.zeroCopy, 1536, o.hold
	return d
}

// pattern is the initial content of the disk.
func pattern(i int) byte { return byte(i>>9) ^ byte(i*7) }

func fillPattern(b []byte) {
	const period = 1 << 17
	for i := range b[:min(period, len(b))] {
		b[i] = pattern(i)
	}
	for n := period; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// aheadLoop is a reactor with a clock that may be ahead of real time.
type aheadLoop struct {
	*reactor.Reactor
	ahead int64 // reactor only
}

func (l *aheadLoop) Now() int64 { return l.Reactor.Now() + l.ahead }

func (l *aheadLoop) Clock() int64 { return l.Reactor.Clock() + l.ahead }

// later advances the clock of the target. Timeouts take effect at the next tick.
func (tg *target) later(d time.Duration) { tg.do(func() { tg.clock.ahead += d.Nanoseconds() }) }

type options struct {
	cfg      Config
	zeroCopy bool // of reads
	hold     bool
	arena    int
	addr     string
	spin     bool
}

func serve(tb testing.TB, o options) *target {
	tb.Helper()
	if o.cfg.Log == nil {
		o.cfg.Log = quiet
	}
	if o.arena == 0 {
		o.arena = 16 << 20
	}
	if o.addr == "" {
		o.addr = "127.0.0.1:0"
	}
	must := func(err error) {
		tb.Helper()
		testutil.Must(tb, err)
	}
	spin := reactor.Config{CPU: -1}
	if o.spin {
		spin.Spin = -1
	}
	r, err := reactor.New(spin)
	must(err)
	arena, err := mem.NewArena("test data", o.arena)
	must(err)
	d := newDisk(tb, &o)
	t, clock := New(o.cfg), &aheadLoop{Reactor: r}
	fg, err := t.NewGroup(fabric.GroupConfig{Loop: clock, Handler: d, Memory: testPool(arena)})
	must(err)
	g := fg.(*Group)
	r.Attach(g)
	tg := &target{tb: tb, t: t, r: r, g: g, d: d, arena: arena, clock: clock}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	tg.l, err = t.Listen(fabric.Addr{
		Transport: nvme.TransportTCP,
		AddrPort:  netip.MustParseAddrPort(o.addr),
	}, 1,
		func(c fabric.Conn) { _ = g.Adopt(c) })
	must(err)
	tg.stop = sync.OnceFunc(func() {
		must(t.Close())
		ended := make(chan struct{})
		r.Post(func() { g.Shutdown(func() { close(ended) }) })
		for open := true; open; { // held commands come back
			tg.do(d.Release)
			select {
			case <-ended:
				open = false
			default:
			}
		}
		cancel()
		must(testutil.Receive(tb, "the reactor", done))
		must(errors.Join(g.Close(), r.Close(), arena.Close(), d.Region.Unmap()))
		testutil.Equal(tb, t.Usage().Connections, 0, "connections are still counted")
		testutil.Equal(tb, t.Usage().Memory, 0, "bytes of queues are still counted")
		testutil.Equal(tb, d.Busy(), 0, "requests are not idle")
		if o, c := d.Opened.Load(), d.Closed.Load(); o != c {
			tb.Errorf("%d sessions opened, %d closed", o, c)
		}
	})
	tb.Cleanup(tg.stop)
	return tg
}

// do runs fn on the reactor and waits for it.
func (tg *target) do(fn func()) {
	tg.tb.Helper()
	done := make(chan struct{})
	tg.r.Post(func() { fn(); close(done) })
	testutil.Receive(tg.tb, "a posted function", done)
}

func (tg *target) addr() string { return tg.l.Addr().AddrPort.String() }

func TestMain(m *testing.M) { testutil.Main(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func countingLog(n *atomic.Int64) *slog.Logger {
	return slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
		n.Add(1)
		return len(b), nil
	}), nil))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
