package rdma

import (
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/verbstest"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// manualLoop is a reactor that the test turns by hand.
type manualLoop struct {
	mu    sync.Mutex
	posts []func()
	clock int64
	after []func()
}

func (l *manualLoop) Post(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.posts = append(l.posts, fn)
}

func (l *manualLoop) runPosts() {
	l.mu.Lock()
	posts := l.posts
	l.posts = nil
	l.mu.Unlock()
	for _, fn := range posts {
		fn()
	}
}

func (l *manualLoop) Wake()                                 {}
func (l *manualLoop) Watch(int, uint32, func(uint32)) error { return nil }
func (l *manualLoop) Unwatch(int) error                     { return nil }
func (l *manualLoop) Now() int64                            { return l.clock }
func (l *manualLoop) After(_ int64, fn func()) (stop func()) {
	l.after = append(l.after, fn)
	return func() { l.after = nil }
}

// manual is a group on a manual loop with one connected host queue.
type manual struct {
	f    *verbstest.Fabric
	loop *manualLoop
	g    *group
	h    *testHandler
	q    *queue
	host *hostQueue
}

// newManual connects one queue. Stop ends it; it must be called before the test does.
func newManual(t testing.TB, o verbstest.Options, cfg Config, p hostParam) *manual {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	m := &manual{f: verbstest.New(o), loop: &manualLoop{}, h: newHandler(t)}
	arena, err := mem.NewArena("test arena", 4<<20)
	must(err)
	cfg.Provider = m.f.Provider("target")
	fill(&cfg.SharedReceives, testShared)
	tr := New(cfg)
	g, err := tr.NewGroup(fabric.GroupConfig{
		Loop: m.loop, Handler: m.h,
		Memory: mem.NewPool(arena, 0),
	})
	must(err)
	m.g = g.(*group)
	l, err := tr.Listen(fabric.Addr{
		Transport: nvme.TransportRDMA,
		AddrPort:  netip.AddrPortFrom(m.f.Addr("target"), 0),
	}, 1,
		func(c fabric.Conn) {
			if err := m.g.Adopt(c); err != nil {
				t.Error(err)
			}
		})
	must(err)
	host := newHost(t, m.f.Provider("host"))
	m.host = host.dial(l.Addr().AddrPort, p)
	m.host.request(p)
	established := make(chan struct{})
	go func() {
		defer close(established)
		host.event(verbs.EventEstablished)
	}()
	m.until(t, func() bool {
		select {
		case <-established:
			return m.g.queues == 1 && m.g.slots[0].state == queueLive
		default:
			return false
		}
	})
	m.q = m.g.slots[0]
	t.Cleanup(func() {
		done := false
		m.g.Shutdown(func() { done = true })
		m.until(t, func() bool { return done })
		for _, err := range []error{m.g.Close(), tr.Close(), arena.Close(), m.h.store.Unmap()} {
			if err != nil {
				t.Error(err)
			}
		}
		if live := m.f.Live("target"); live != (verbstest.Counts{}) {
			t.Errorf("leaked: %+v", live)
		}
		m.f.Close()
	})
	return m
}

// turn is one round of the loop.
func (m *manual) turn() {
	m.loop.runPosts()
	m.g.Poll(64)
}

func (m *manual) until(t testing.TB, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("not in time")
		}
		m.turn()
	}
}

// state is the state of the only request that is not idle.
func (m *manual) state(t *testing.T) requestState {
	t.Helper()
	state := requestIdle
	for i := range m.q.reqs {
		if s := m.q.reqs[i].state; s != requestIdle {
			if state != requestIdle {
				t.Fatalf("two requests at work: %v and %v", state, s)
			}
			state = s
		}
	}
	return state
}

func TestTransitions(t *testing.T) {
	m := newManual(t, verbstest.Options{}, Config{}, ioParam(8))
	q := m.host
	step := func(want requestState) {
		t.Helper()
		if got := m.state(t); got != want {
			t.Fatalf("state %v, want %v", got, want)
		}
	}
	one := func(s nvme.SQE) { t.Helper(); q.send(&s, nil); m.turn() }

	// A read.
	sends := m.f.Inject(verbstest.Fault{
		Host: "target", Ops: verbstest.OpSend, Hold: true,
		Times: -1,
	})
	one(q.keyed(command(opRead, 1, 0, 4096), 0, 4096))
	step(requestSending)
	if m.q.slots != m.q.sqSize-2 || m.q.sends != 7 || m.q.signalled != 1 || m.q.posted != 8 {
		t.Errorf("%d of %d slots, %d sends, %d signalled, %d receives", m.q.slots, m.q.sqSize,
			m.q.sends, m.q.signalled, m.q.posted)
	}
	sends.Release()
	m.turn()
	step(requestIdle)

	// A write whose memory, data and backend are late.
	memory, _ := m.g.pool.memory.AllocReserve(nil, m.g.pool.memory.Available())
	reads := m.f.Inject(verbstest.Fault{
		Host: "target", Ops: verbstest.OpRead, Hold: true,
		Times: -1,
	})
	one(q.keyed(command(opHoldWrite, 2, 0, 4096), 0, 4096))
	step(requestNeedMemory)
	if !m.g.Arm() {
		t.Error("waiting for memory that is not there keeps the reactor awake")
	}
	m.g.pool.memory.Free(memory)
	if m.g.Arm() {
		t.Error("the reactor may sleep although memory has come back")
	}
	taken := m.q.reads
	m.q.reads = 0
	m.turn()
	step(requestNeedRead)
	m.q.reads = taken
	m.q.touch()
	m.turn()
	step(requestReading)
	if m.q.reads != taken-1 || m.q.signalled != 1 {
		t.Errorf("%d reads, %d signalled", m.q.reads, m.q.signalled)
	}
	reads.Release()
	m.turn()
	step(requestExecuting)
	m.q.sends = 0 // the host has no room for a response
	m.h.complete(m.h.held[0], nvme.Success)
	m.h.held = nil
	step(requestNeedSend)
	m.turn()
	step(requestNeedSend)
	m.q.sends = 8
	m.q.touch()
	m.turn()
	m.turn()
	step(requestIdle)
	if m.q.slots != m.q.sqSize || m.q.reads != taken || m.q.sends != 8 || m.q.signalled != 0 ||
		m.q.posted != 8 {
		t.Errorf("at rest: %d of %d slots, %d reads, %d sends, %d signalled, %d receives",
			m.q.slots, m.q.sqSize, m.q.reads, m.q.sends, m.q.signalled, m.q.posted)
	}
}

// On iWARP every RDMA WRITE is signalled; elsewhere only the response is.
func TestSignalledWrites(t *testing.T) {
	for iwarp, want := range map[bool]int{false: 1, true: 2} {
		m := newManual(t, verbstest.Options{IWARP: iwarp}, Config{}, ioParam(8))
		writes := m.f.Inject(verbstest.Fault{Host: "target", Ops: verbstest.OpWrite, Hold: true})
		s := m.host.keyed(command(opRead, 1, 0, 4096), 0, 4096)
		m.host.send(&s, nil)
		m.turn()
		if m.q.signalled != want {
			t.Errorf("iWARP %v: %d of a WRITE and a SEND are signalled, want %d", iwarp,
				m.q.signalled, want)
		}
		writes.Release()
		m.turn()
		if m.q.signalled != 0 || m.state(t) != requestIdle {
			t.Errorf("iWARP %v: %d signalled at rest", iwarp, m.q.signalled)
		}
	}
}

// A capsule that lands in a slot whose last response is still in flight is served after that.
func TestCapsuleWaitsForResponse(t *testing.T) {
	m := newManual(t, verbstest.Options{}, Config{}, ioParam(2))
	sends := m.f.Inject(verbstest.Fault{
		Host: "target", Ops: verbstest.OpSend, Hold: true,
		Times: -1,
	})
	for cid := range uint16(4) {
		s := command(opNothing, cid, 0, 0)
		m.host.send(&s, nil)
		m.turn()
	}
	if m.q.reqs[0].waiting != capsuleSize || m.q.reqs[1].waiting != capsuleSize ||
		m.h.counts["prepare"] != 2 {
		t.Fatalf("%d and %d bytes wait, %d were prepared", m.q.reqs[0].waiting, m.q.reqs[1].waiting,
			m.h.counts["prepare"])
	}
	sends.Release()
	m.until(t, func() bool { return m.h.counts["complete"] == 4 })
	seen := map[uint16]bool{}
	for range 4 {
		cqe, _, ok := m.host.response()
		if !ok {
			t.Fatalf("%+v", m.host.bad)
		}
		seen[cqe.CID()] = true
	}
	if len(seen) != 4 {
		t.Errorf("responses to %v", seen)
	}
}

// refusingQP does not take SEND_WITH_INV, or nothing at all.
type refusingQP struct {
	verbs.QP
	all    bool
	posted []verbs.SendOpcode
}

func (q *refusingQP) PostSend(wrs []verbs.SendWR, _ []verbs.SGE) (int, error) {
	for i, wr := range wrs {
		if q.all || wr.Opcode == verbs.WRSendWithInv {
			return i, errFlushed
		}
		q.posted = append(q.posted, wr.Opcode)
	}
	return len(wrs), nil
}

// A device without SEND_WITH_INV is served with SEND.
func TestDeviceWithoutInvalidate(t *testing.T) {
	wrs := []verbs.SendWR{
		{Opcode: verbs.WRRDMAWrite},
		{Opcode: verbs.WRSendWithInv, Flags: verbs.SendSignaled, InvalidateRKey: 5},
		{Opcode: verbs.WRSend, Flags: verbs.SendSignaled},
		{Opcode: verbs.WRSendWithInv, Flags: verbs.SendSignaled},
	}
	fake := &refusingQP{}
	q := &queue{qp: fake, g: &group{}, p: &port{dev: &device{}}}
	if err := q.postSend(slices.Clone(wrs)); err != nil {
		t.Fatal(err)
	}
	want := []verbs.SendOpcode{verbs.WRRDMAWrite, verbs.WRSend, verbs.WRSend, verbs.WRSend}
	if !slices.Equal(fake.posted, want) || q.signalled != 3 || !q.p.dev.noInvalidate.Load() {
		t.Errorf("posted %v, %d signalled", fake.posted, q.signalled)
	}
	broken := &queue{qp: &refusingQP{all: true}, g: &group{}, p: &port{dev: &device{}}}
	if err := broken.postSend(slices.Clone(wrs[1:])); err == nil ||
		broken.p.dev.noInvalidate.Load() {
		t.Errorf("a queue pair that takes nothing: %v", err)
	}
}

func TestStaleCompletions(t *testing.T) {
	m := newManual(t, verbstest.Options{}, Config{}, ioParam(8))
	for _, id := range []uint64{
		workID(workRecv, m.q.gen+1, 0, 0), workID(workSend, m.q.gen, 1, 0),
		workID(workRead, m.q.gen-1, 0, 3), 0, 1<<64 - 1,
	} {
		m.g.completed(&verbs.WC{WRID: id, Status: verbs.WCGeneralErr})
	}
	if m.q.failed || m.q.posted != 8 {
		t.Error("a completion of another queue was taken")
	}
}

func TestList(t *testing.T) {
	var l list
	qs := [2]*queue{{}, {}}
	rs := make([]request, 5)
	for i := range rs {
		rs[i].Queue = qs[i%2]
		rs[i].tag = uint16(i)
	}
	tags := func() (out []uint16) {
		for r := l.pop(); r != nil; r = l.pop() {
			out = append(out, r.tag)
		}
		return out
	}
	l.push(&rs[0])
	l.push(&rs[1])
	l.unpop(&rs[2])
	if got := tags(); !slices.Equal(got, []uint16{2, 0, 1}) || l.tail != nil {
		t.Error(got)
	}
	l.unpop(&rs[3])
	for _, i := range []int{0, 1, 2, 4} {
		l.push(&rs[i])
	}
	l.remove(qs[0])
	if got := tags(); !slices.Equal(got, []uint16{3, 1}) {
		t.Error(got)
	}
}

// ioRound sends n commands, turns the loop and takes the responses.
func (m *manual) ioRound(sqes []nvme.SQE) {
	for i := range sqes {
		m.host.send(&sqes[i], nil)
	}
	m.turn()
	m.turn()
	m.turn()
	for range sqes {
		m.host.response()
	}
}

func TestNothingIsAllocatedPerCommand(t *testing.T) {
	for name, iwarp := range map[string]bool{"roce": false, "iwarp": true} {
		t.Run(name, func(t *testing.T) {
			m := newManual(t, verbstest.Options{IWARP: iwarp}, Config{}, ioParam(32))
			m.h.checks = false
			var sqes []nvme.SQE
			for i := range 32 {
				op := []nvme.Opcode{opRead, opWrite, opLentRead, opNothing}[i%4]
				s := m.host.keyed(command(op, uint16(i), 0, 4096), i*4096, 4096)
				if op == opWrite && i%8 == 1 {
					s.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, 0)
					s.SetCDW(12, 0)
				}
				sqes = append(sqes, s)
			}
			m.ioRound(sqes)
			if n := testutil.AllocsPerRun(50, func() { m.ioRound(sqes) }); n != 0 {
				t.Errorf("%v allocations in 32 commands", n)
			}
		})
	}
}
