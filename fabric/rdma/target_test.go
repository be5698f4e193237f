package rdma

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/verbstest"
	"github.com/nvmf-target/nvmf-target/internal/leak"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func TestMain(m *testing.M) {
	leak.Main(m, func() error {
		if u := mem.Usage(); len(u) > 0 {
			return fmt.Errorf("leaked memory: %+v", u)
		}
		return nil
	})
}

// The commands of testHandler. Length is CDW12 bytes, the place CDW10 in bytes.
const (
	opNothing   nvme.Opcode = 0x00
	opWrite     nvme.Opcode = 0x01
	opRead      nvme.Opcode = 0x02
	opReadFail  nvme.Opcode = 0x10 // a read whose medium fails
	opRefused   nvme.Opcode = 0x11 // refused by Prepare
	opHold      nvme.Opcode = 0x12 // does not complete until letGo
	opLentRead  nvme.Opcode = 0x20
	opLentWrite nvme.Opcode = 0x21
	opLeave     nvme.Opcode = 0x30 // completes, then Disconnect
	opConnect   nvme.Opcode = 0x31 // SetDepth
	opHoldWrite nvme.Opcode = 0x32
)

// testHandler is a controller with a piece of memory; it checks that every request goes the way of the contract.
type testHandler struct {
	t       testing.TB
	store   *mem.Region
	mu      sync.Mutex // for tests that look from outside
	openErr error
	opened  int
	closed  int
	queue   fabric.Queue
	held    []*fabric.Request
	phase   map[*fabric.Request]string
	counts  map[string]int
	checks  bool
	one     [1]*fabric.Request
	regions map[mem.RegionID]bool // where the data of writes came
}

func newHandler(t testing.TB) *testHandler {
	r, err := mem.Map("test store", 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	return &testHandler{
		t: t, store: r, phase: map[*fabric.Request]string{}, counts: map[string]int{}, checks: true, regions: map[mem.RegionID]bool{},
	}
}

type testSession struct{ closed bool }

func (h *testHandler) Open(q fabric.Queue) (fabric.Session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.openErr != nil {
		return nil, h.openErr
	}
	h.opened++
	h.queue = q
	return &testSession{}, nil
}

func (h *testHandler) step(r *fabric.Request, to string, from ...string) {
	if !h.checks {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[to]++
	was := h.phase[r]
	for _, f := range from {
		if was == f {
			h.phase[r] = to
			return
		}
	}
	h.t.Errorf("request %d: %s after %q", r.Tag, to, was)
}

func (h *testHandler) Prepare(reqs []*fabric.Request) {
	for _, r := range reqs {
		h.step(r, "prepare", "", "complete", "release", "abandon")
		if !r.Status.OK() {
			continue
		}
		n := r.SQE.CDW(12)
		if n > r.HostLength {
			r.Status = nvme.DataSGLLengthInvalid
			continue
		}
		lend := func(reaches func([]mem.Segment) bool) {
			off := int(r.SQE.CDW(10))
			b := h.store.Bytes()[off : off+int(n)]
			half := len(b) / 2
			segs := append(r.Segs[:0], mem.Segment{B: b[:half], Region: h.store.ID()}, mem.Segment{B: b[half:], Region: h.store.ID()})
			if reaches(segs) {
				r.Segs, r.Lent = segs, true
			}
		}
		switch r.SQE.Opcode() {
		case opWrite, opHoldWrite:
			r.Dir, r.Length = fabric.HostToController, n
		case opRead, opReadFail:
			r.Dir, r.Length = fabric.ControllerToHost, n
		case opLentRead:
			r.Dir, r.Length = fabric.ControllerToHost, n
			lend(r.Queue.Reaches)
		case opLentWrite:
			r.Dir, r.Length = fabric.HostToController, n
			lend(r.Queue.Receives)
		case opRefused:
			r.Status = nvme.LBAOutOfRange | nvme.DNR
		}
	}
}

func (h *testHandler) Execute(reqs []*fabric.Request) {
	for _, r := range reqs {
		h.step(r, "execute", "prepare")
		st := r.Status
		off := int(r.SQE.CDW(10))
		switch op := r.SQE.Opcode(); {
		case !st.OK(), r.Lent:
		case op == opWrite, op == opLentWrite:
			for _, s := range r.Segs {
				if h.checks {
					h.mu.Lock()
					h.regions[s.Region] = true
					h.mu.Unlock()
				}
				off += copy(h.store.Bytes()[off:], s.B)
			}
		case op == opRead, op == opLentRead:
			for _, s := range r.Segs {
				off += copy(s.B, h.store.Bytes()[off:])
			}
		case op == opReadFail:
			for _, s := range r.Segs {
				copy(s.B, "secret of another host")
			}
			st = nvme.UnrecoveredReadError
		case op == opHold, op == opHoldWrite:
			h.mu.Lock()
			h.held = append(h.held, r)
			h.mu.Unlock()
			continue
		case op == opConnect:
			if err := r.Queue.SetDepth(int(r.SQE.CDW(10))); err != nil {
				st = nvme.ConnectInvalidParameters
			}
		}
		h.complete(r, st)
		if r.SQE.Opcode() == opLeave {
			r.Queue.Disconnect(fmt.Errorf("asked to"))
		}
	}
}

func (h *testHandler) complete(r *fabric.Request, st nvme.Status) {
	h.step(r, "complete", "execute")
	r.CQE.Fill(uint64(r.SQE.CDW(13)), 0, r.SQE.CID(), st)
	h.one[0] = r
	r.Queue.Complete(h.one[:])
}

func (h *testHandler) Abandon(r *fabric.Request) { h.step(r, "abandon", "prepare") }
func (h *testHandler) Release(r *fabric.Request) { h.step(r, "release", "complete", "abandon") }

func (h *testHandler) Close(s fabric.Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.(*testSession).closed {
		h.t.Error("a session was closed twice")
	}
	s.(*testSession).closed = true
	h.closed++
}

func (h *testHandler) count(what string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch what {
	case "opened":
		return h.opened
	case "closed":
		return h.closed
	case "held":
		return len(h.held)
	}
	return h.counts[what]
}

// bench is a target with one group on a real reactor and a fake fabric.
type bench struct {
	t       testing.TB
	f       *verbstest.Fabric
	tr      *Transport
	g       *group
	r       *reactor.Reactor
	h       *testHandler
	l       fabric.Listener
	arena   *mem.Arena
	logs    *bytes.Buffer
	logMu   sync.Mutex
	cancel  context.CancelFunc
	stopped chan struct{}
	host    *testHost
	taken   []mem.Segment
	closed  bool
}

// lockedWriter makes the log readable while it is written.
type lockedWriter struct{ b *bench }

func (w lockedWriter) Write(p []byte) (int, error) {
	w.b.logMu.Lock()
	defer w.b.logMu.Unlock()
	return w.b.logs.Write(p)
}

func (b *bench) log() string {
	b.logMu.Lock()
	defer b.logMu.Unlock()
	return b.logs.String()
}

type benchOptions struct {
	fabric verbstest.Options
	cfg    Config
	arena  int
	setup  func(*verbstest.Fabric)
	wrap   func(verbs.Provider) verbs.Provider
	timers *earlyLoop // takes the place of the loop
}

// earlyLoop is a reactor whose timers can be made to run at once.
type earlyLoop struct {
	*reactor.Reactor
	pending map[*earlyTimer]struct{} // reactor only
}

type earlyTimer struct {
	stop func()
	fn   func()
}

func (l *earlyLoop) After(d int64, fn func()) (stop func()) {
	t := &earlyTimer{fn: fn}
	end := func() { t.stop(); delete(l.pending, t) }
	t.stop = l.Reactor.After(d, func() { end(); fn() })
	l.pending[t] = struct{}{}
	return end
}

// expire runs every timer now.
func (b *bench) expire(l *earlyLoop) {
	b.on(func() {
		for t := range maps.Clone(l.pending) {
			if _, ok := l.pending[t]; ok { // no timer before stopped it
				t.stop()
				delete(l.pending, t)
				t.fn()
			}
		}
	})
}

func newBench(t *testing.T, o benchOptions) *bench {
	t.Helper()
	b := &bench{t: t, f: verbstest.New(o.fabric), logs: &bytes.Buffer{}, stopped: make(chan struct{})}
	if o.setup != nil {
		o.setup(b.f)
	}
	o.cfg.Provider = b.f.Provider("target")
	if o.wrap != nil {
		o.cfg.Provider = o.wrap(o.cfg.Provider)
	}
	if o.cfg.Log == nil {
		o.cfg.Log = slog.New(slog.NewTextHandler(lockedWriter{b}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if o.arena == 0 {
		o.arena = 4 << 20
	}
	fill(&o.cfg.SharedReceives, testShared)
	var err error
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	b.arena, err = mem.NewArena("test arena", o.arena)
	must(err)
	b.r, err = reactor.New(reactor.Config{CPU: -1})
	must(err)
	b.h = newHandler(t)
	b.tr = New(o.cfg)
	loop := fabric.Loop(b.r)
	if o.timers != nil {
		o.timers.Reactor, o.timers.pending = b.r, make(map[*earlyTimer]struct{})
		loop = o.timers
	}
	g, err := b.tr.NewGroup(fabric.GroupConfig{Loop: loop, Handler: b.h, Arena: b.arena})
	must(err)
	b.g = g.(*group)
	b.r.Attach(b.g)
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	go func() {
		defer close(b.stopped)
		if err := b.r.Run(ctx); err != nil {
			t.Errorf("reactor: %v", err)
		}
	}()
	t.Cleanup(b.close)
	b.l, err = b.tr.Listen(fabric.Addr{Transport: nvme.TransportRDMA, AddrPort: netip.AddrPortFrom(b.f.Addr("target"), 0)}, 7, b.adopt)
	must(err)
	b.host = newHost(t, b.f.Provider("host"))
	return b
}

func (b *bench) adopt(c fabric.Conn) {
	if err := b.g.Adopt(c); err != nil {
		fmt.Fprintf(lockedWriter{b}, "adopt: %v\n", err)
	}
}

func (b *bench) addr() netip.AddrPort { return b.l.Addr().AddrPort }

// close ends the target in order and looks for leaks.
func (b *bench) close() {
	if b.closed {
		return
	}
	b.closed = true
	check := func(what string, err error) {
		if err != nil {
			b.t.Errorf("close %s: %v", what, err)
		}
	}
	if b.l != nil { // none if it could not listen
		check("listener", b.l.Close())
	}
	done := make(chan struct{})
	b.r.Post(func() { b.g.Shutdown(func() { close(done) }) })
	select {
	case <-done:
	case <-time.After(patience):
		b.t.Fatalf("shutdown hangs:\n%s", b.log())
	}
	b.cancel()
	<-b.stopped
	check("group", b.g.Close())
	check("transport", b.tr.Close())
	check("reactor", b.r.Close())
	if n := b.tr.Connections(); n != 0 {
		b.t.Errorf("%d connections are counted", n)
	}
	check("arena", b.arena.Close())
	check("store", b.h.store.Unmap())
	if live := b.f.Live("target"); live != (verbstest.Counts{}) {
		b.t.Errorf("leaked: %+v\n%s", live, b.log())
	}
	if b.h.opened != b.h.closed {
		b.t.Errorf("%d sessions were opened, %d closed", b.h.opened, b.h.closed)
	}
	b.f.Close()
}

// on runs fn on the reactor.
func (b *bench) on(fn func()) {
	b.t.Helper()
	done := make(chan struct{})
	b.r.Post(func() { fn(); close(done) })
	select {
	case <-done:
	case <-time.After(patience):
		b.t.Fatal("the reactor does not answer")
	}
}

// eventually waits for a condition that other goroutines bring about.
func (b *bench) eventually(what string, ok func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("not in time: %s\n%s", what, b.log())
		}
	}
}

// idle waits until the group has no queue and all data memory is back.
func (b *bench) idle() {
	b.t.Helper()
	b.eventually("no queues, no connections, all memory free", func() bool {
		n, free := 0, 0
		b.on(func() { n, free = b.g.queues, b.arena.Available() })
		return n == 0 && free == len(b.arena.Region().Bytes()) && b.tr.Connections() == 0
	})
}

// letGo completes what the handler holds.
func (b *bench) letGo() {
	b.on(func() {
		b.h.mu.Lock()
		held := b.h.held
		b.h.held = nil
		b.h.mu.Unlock()
		for _, r := range held {
			b.h.complete(r, nvme.Success)
		}
	})
}

// fragment takes every other page of the arena away; defragment gives them back.
func (b *bench) fragment() {
	var all []mem.Segment
	for {
		segs, ok := b.arena.Alloc(nil, mem.BlockMin)
		if !ok {
			break
		}
		all = append(all, segs...)
	}
	for i, s := range all {
		if i%2 == 0 {
			b.arena.Free([]mem.Segment{s})
		} else {
			b.taken = append(b.taken, s)
		}
	}
}

func (b *bench) defragment() {
	b.arena.Free(b.taken)
	b.taken = nil
}

func netipWithPort(a netip.AddrPort, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr(), port)
}
