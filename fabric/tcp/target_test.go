package tcp

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// target is a transport with one group on one running reactor.
type target struct {
	tb    testing.TB
	t     *Transport
	r     *reactor.Reactor
	g     *Group
	d     *disk
	arena *mem.Arena
	l     fabric.Listener
	clock *aheadLoop
	stop  func()
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
	d := newDisk(o.zeroCopy)
	d.hold = o.hold
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
			tg.do(d.release)
			select {
			case <-ended:
				open = false
			default:
			}
		}
		cancel()
		must(testutil.Receive(tb, "the reactor", done))
		must(errors.Join(g.Close(), r.Close(), arena.Close(), d.data.Unmap()))
		testutil.Equal(tb, t.Usage().Connections, 0, "connections are still counted")
		testutil.Equal(tb, t.Usage().Memory, 0, "bytes of queues are still counted")
		if o, c := d.opened.Load(), d.closed.Load(); o != c {
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

// TestManyQueues: with any number of connections in a group, deadlines and a stop handle few of
// them in a turn.
func TestManyQueues(t *testing.T) {
	for _, n := range []int{10, 10_000} {
		h := newManual(t, options{})
		queues := make([]queue, n)
		for i := range queues {
			q := &queues[i]
			q.g, q.state = h.g, queueDead
			h.g.queues.Add(q, &q.place)
		}
		turns := func() (n int) {
			for n = 1; len(h.loop.posts) > 0; n++ {
				posts := h.loop.posts
				h.loop.posts = nil
				for _, fn := range posts {
					fn()
				}
			}
			return n
		}
		for what, look := range map[string]func(){
			"deadlines": h.g.checkDeadlines, "stop": func() { h.g.Shutdown(func() {}) },
		} {
			look()
			if got := turns(); got < n/100 || n < 100 && got > 2 {
				t.Errorf("%s of %d connections: %d turns", what, n, got)
			}
		}
		for i := range queues {
			h.g.queues.Remove(&queues[i].place)
		}
		h.close()
	}
}

// connect opens a connection and makes its queue ready for commands.
func (h *manual) connect(p pdu.Params, depth int) *client {
	h.tb.Helper()
	c := &client{tb: h.tb, p: p}
	h.open()
	r := pdu.ICReq(&p, 1)
	h.send(r[:])
	h.send(c.connectPDU(1, depth, 0))
	want := pdu.ICSize + pdu.CapsuleRespSize + p.HeaderDigestSize()
	testutil.MustEqual(h.tb, len(h.recv()), want, "bytes of answers")
	return c
}

// roundTrips returns a function that makes the target serve depth commands in one batch, and the
// size of the expected answer in bytes.
func (h *manual) roundTrips(c *client, op nvme.Opcode, n, depth int, inCapsule bool) (func(), int) {
	var batch []byte
	answer := pdu.CapsuleRespSize + c.p.HeaderDigestSize()
	for i := range depth {
		sqe := rw(op, uint16(i), i*n, n, inCapsule)
		var data []byte
		if inCapsule {
			data = random(i, n)
		}
		batch = append(batch, c.capsule(&sqe, data)...)
	}
	if op == nvme.NVMRead {
		answer += c.p.PDO(pdu.DataSize, c.p.HPDA) + n + c.p.DataDigestSize()
	}
	if op == nvme.NVMRead || inCapsule {
		return func() { h.send(batch) }, answer * depth
	}
	// Writes by R2T take their tags from the R2Ts. Answering them allocates nothing either.
	r2t := pdu.DataSize + c.p.HeaderDigestSize()
	tmpl := c.h2cData(pdu.LastPDU, 0, 0, 0, random(1, n))
	return func() {
		h.send(batch)
		got := h.recv()
		testutil.MustEqual(h.tb, len(got), r2t*depth, "bytes of R2Ts")
		for i := range depth {
			r := (*pdu.Data)(got[i*r2t:])
			(*pdu.Data)(tmpl).SetH2C(&c.p, pdu.LastPDU, r.CCCID(), r.TTAG(), 0, uint32(n))
			c.fixHeaderDigest(tmpl, pdu.DataSize)
			h.send(tmpl)
		}
	}, answer * depth
}

// TestNoAllocations: commands allocate nothing: reads with and without zero copy, writes with small
// and large data in their capsules and by R2T, with and without digests.
func TestNoAllocations(t *testing.T) {
	for _, zeroCopy := range []bool{false, true} {
		for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true}} {
			h, c := joined(t, options{zeroCopy: zeroCopy, arena: 32 << 20}, p, 32)
			for _, w := range []struct {
				name string
				op   nvme.Opcode
				n    int
				ic   bool
			}{
				{"4K read", nvme.NVMRead, 4096, false},
				{"128K read", nvme.NVMRead, 131072, false},
				{"4K write", nvme.NVMWrite, 4096, true},
				{"128K write", nvme.NVMWrite, 131072, false},
				{"128K write in the capsule", nvme.NVMWrite, 131072, true},
			} {
				depth := 16
				trip, answer := h.roundTrips(c, w.op, w.n, depth, w.ic)
				run := func() {
					trip()
					if got := len(h.recv()); got != answer {
						t.Fatalf("%s: %d bytes of answers, want %d", w.name, got, answer)
					}
				}
				run() // the backing arrays of segments grow to their size
				if a := testutil.AllocsPerRun(20, run); a != 0 {
					t.Errorf("%s, zero copy %v, digests %v: %v allocations per %d commands", w.name,
						zeroCopy, p.DataDigest, a, depth)
				}
			}
			h.close()
		}
	}
}

func benchmark(b *testing.B, p pdu.Params, op nvme.Opcode, n, depth int, ic bool) {
	h := newManual(b, options{zeroCopy: true, arena: 64 << 20})
	c := h.connect(p, depth+1)
	trip, answer := h.roundTrips(c, op, n, depth, ic)
	for b.Loop() {
		trip()
		testutil.MustEqual(b, len(h.recv()), answer, "bytes of answers")
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*depth), "ns/cmd")
	h.close()
}

func BenchmarkRead4K(b *testing.B)  { benchmark(b, pdu.Params{}, nvme.NVMRead, 4096, 32, false) }
func BenchmarkWrite4K(b *testing.B) { benchmark(b, pdu.Params{}, nvme.NVMWrite, 4096, 16, true) }
func BenchmarkRead4KDigests(b *testing.B) {
	benchmark(b, pdu.Params{HeaderDigest: true, DataDigest: true}, nvme.NVMRead, 4096, 32, false)
}
