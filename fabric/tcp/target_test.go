package tcp

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

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
