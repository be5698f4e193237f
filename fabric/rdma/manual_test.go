package rdma

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// manualLoop is a reactor that the test drives.
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
func (l *manualLoop) Clock() int64                          { return l.clock }
func (l *manualLoop) After(_ int64, fn func()) (stop func()) {
	l.after = append(l.after, fn)
	return func() { l.after = nil }
}

// manual is a group on a manual loop with one connected host queue.
type manual struct {
	f    *verbstest.Fabric
	loop *manualLoop
	g    *group
	h    *fabrictest.Disk
	q    *queue
	host *hostQueue

	machine *testHost
	addr    netip.AddrPort
}

// newManual connects one queue. Stop ends it; it must be called before the test does.
func newManual(t testing.TB, o verbstest.Options, cfg Config, p hostParam) *manual {
	t.Helper()
	must := func(err error) {
		t.Helper()
		testutil.Must(t, err)
	}
	m := &manual{f: newFabric(o), loop: &manualLoop{}, h: newHandler(t)}
	arena, err := mem.NewArena("test arena", 4<<20)
	must(err)
	cfg.Provider = m.f.Provider("target")
	cfg.SRQSize = cmp.Or(cfg.SRQSize, testSRQSize)
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
	}, 1, func(c fabric.Conn) { testutil.Check(t, m.g.Adopt(c)) })
	must(err)
	m.addr, m.machine = l.Addr().AddrPort, newHost(t, m.f.Provider("host"))
	m.host = m.connect(t, p)
	m.q = m.g.first()
	t.Cleanup(func() {
		done := false
		m.g.Shutdown(func() { done = true })
		m.until(t, func() bool { return done })
		for _, err := range []error{m.g.Close(), tr.Close(), arena.Close(), m.h.Region.Unmap()} {
			testutil.Check(t, err)
		}
		testutil.Equal(t, m.f.Live("target"), (verbstest.Counts{}), "leaked")
		m.f.Close()
	})
	return m
}

func (m *manual) connect(t testing.TB, p hostParam) *hostQueue {
	t.Helper()
	host := m.machine.dial(m.addr, p)
	host.request(p)
	established := make(chan struct{})
	go func() {
		defer close(established)
		m.machine.event(verbs.EventEstablished)
	}()
	m.until(t, func() bool {
		for q := range m.g.queues.all() {
			if q.state != queueLive {
				return false
			}
		}
		select {
		case <-established:
			return true
		default:
			return false
		}
	})
	_ = host.qp.ShortenRNRTimer() // iWARP has none
	return host
}

// turn is one round of the loop.
func (m *manual) turn() {
	m.loop.runPosts()
	m.g.Poll(64)
}

func (m *manual) until(t testing.TB, ok func() bool) {
	t.Helper()
	soon(t, "what the loop brings about", func() bool { m.turn(); return ok() })
}

// state is the state of the only request that is not idle.
func (m *manual) state(t *testing.T) requestState {
	t.Helper()
	state := requestIdle
	for i := range m.q.reqs {
		if s := m.q.reqs[i].state; s != requestIdle {
			testutil.MustEqual(t, state, requestIdle, "two requests at work and %v", s)
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
		testutil.MustEqual(t, m.state(t), want, "state")
	}
	one := func(s nvme.SQE) { t.Helper(); q.send(&s, nil); m.turn() }

	// A read.
	sends := m.f.Inject(verbstest.Fault{
		Host: "target", Ops: verbstest.OpSend, Hold: true,
		Times: -1,
	})
	var stages [fabric.Stages]int64
	m.h.OnSent = func(r *fabric.Request) { stages = r.Stages }
	one(q.keyed(command(opRead, 1, 0, 4096), 0, 4096))
	step(requestSending)
	m.loop.clock += 1000
	testutil.True(t, m.q.sqFree == m.q.sqSize-2 && m.q.sends == 7 && m.q.signaled == 1 &&
		m.q.recv.posted == 8, "%d of %d slots, %d sends, %d signaled, %d receives", m.q.sqFree,
		m.q.sqSize, m.q.sends, m.q.signaled, m.q.recv.posted)
	sends.Release()
	m.turn()
	step(requestIdle)
	testutil.Equal(t, stages, [fabric.Stages]int64{fabric.StageResponse: 1000},
		"a read whose response is late")

	// A write with late memory, data and backend.
	var memory mem.Allocation
	m.g.cfg.Memory.AllocReserve(&memory, nil, m.g.cfg.Memory.Available())
	reads := m.f.Inject(verbstest.Fault{
		Host: "target", Ops: verbstest.OpRead, Hold: true,
		Times: -1,
	})
	one(q.keyed(command(opHoldWrite, 2, 0, 4096), 0, 4096))
	step(requestNeedMemory)
	testutil.True(t, m.g.Arm(), "waiting for memory that is not there keeps the reactor awake")
	memory.Free()
	m.loop.clock += 200
	testutil.True(t, !m.g.Arm(), "the reactor may sleep although memory has come back")
	taken := m.q.reads
	m.q.reads = 0
	m.turn()
	step(requestNeedRead)
	m.q.reads = taken
	m.q.schedule()
	m.turn()
	step(requestReading)
	testutil.True(t, m.q.reads == taken-1 && m.q.signaled == 1, "%d reads, %d signaled", m.q.reads,
		m.q.signaled)
	m.loop.clock += 30
	reads.Release()
	m.turn()
	step(requestExecuting)
	m.loop.clock += 4
	m.q.sends = 0 // the host has no room for a response
	m.h.Release()
	step(requestNeedSend)
	m.turn()
	step(requestNeedSend)
	m.q.sends = 8
	m.q.schedule()
	m.turn()
	m.turn()
	step(requestIdle)
	if stages != [fabric.Stages]int64{200, 30, 0, 4} { // this handler does not count its stage
		t.Errorf("a write: %v", stages)
	}
	testutil.True(t, m.q.sqFree == m.q.sqSize && m.q.reads == taken && m.q.sends == 8 &&
		m.q.signaled == 0 && m.q.recv.posted == 8,
		"at rest: %d of %d slots, %d reads, %d sends, %d signaled, %d receives", m.q.sqFree,
		m.q.sqSize, m.q.reads, m.q.sends, m.q.signaled, m.q.recv.posted)
}

// When another group on the reactor serves the pool, its grants and expiries keep the reactor
// awake, and the next poll continues.
func TestMemoryGrantedByAnotherGroup(t *testing.T) {
	m := newManual(t, verbstest.Options{}, Config{}, ioParam(8))
	pool := m.g.cfg.Memory
	for i, tt := range []struct {
		op    nvme.Opcode
		grant bool
		state requestState
		want  nvme.Status
	}{
		{opRead, true, requestExecuting, nvme.Success},
		{opWrite, true, requestNeedRead, nvme.Success},
		{opRead, false, requestExecuting, nvme.CommandInterrupted},
	} {
		var all mem.Allocation
		pool.AllocReserve(&all, nil, pool.Available())
		s := m.host.keyed(command(tt.op, uint16(i), 0, 4096), 0, 4096)
		m.host.send(&s, nil)
		m.turn()
		testutil.MustTrue(t, m.state(t) == requestNeedMemory && m.g.Arm(),
			"%d: state %v, or the reactor stays awake for nothing", i, m.state(t))
		if tt.grant {
			all.Free()
			pool.Serve()
		} else {
			for next := pool.Expire(1 << 62); next() > 0; {
			}
			all.Free()
		}
		testutil.MustTrue(t, m.state(t) == tt.state && !m.g.Arm(),
			"%d: state %v, want %v, or the reactor may sleep", i, m.state(t), tt.state)
		m.until(t, func() bool { return m.state(t) == requestIdle })
		cqe, _, ok := m.host.response()
		testutil.True(t, ok && cqe.Status() == tt.want, "%d: %v, want %v", i, cqe.Status(), tt.want)
	}
}

// On iWARP every RDMA WRITE is signaled; elsewhere only the response is.
func TestSignaledWrites(t *testing.T) {
	for iwarp, want := range map[bool]int{false: 1, true: 2} {
		m := newManual(t, verbstest.Options{IWARP: iwarp}, Config{}, ioParam(8))
		writes := m.f.Inject(verbstest.Fault{Host: "target", Ops: verbstest.OpWrite, Hold: true})
		s := m.host.keyed(command(opRead, 1, 0, 4096), 0, 4096)
		m.host.send(&s, nil)
		m.turn()
		testutil.True(t, m.q.signaled == want,
			"iWARP %v: %d of a WRITE and a SEND are signaled, want %d", iwarp, m.q.signaled, want)
		writes.Release()
		m.turn()
		testutil.True(t, m.q.signaled == 0 && m.state(t) == requestIdle,
			"iWARP %v: %d signaled at rest", iwarp, m.q.signaled)
	}
}

// orderedQP notes the opcodes of every batch.
type orderedQP struct {
	verbs.QP
	batches [][]verbs.SendOpcode
}

func (q *orderedQP) PostSend(wrs []verbs.SendWR, sges []verbs.SGE) (int, error) {
	var ops []verbs.SendOpcode
	for _, wr := range wrs {
		ops = append(ops, wr.Opcode)
	}
	q.batches = append(q.batches, ops)
	return q.QP.PostSend(wrs, sges)
}

// The WRITEs of several commands are posted before their responses if the device asks for it, and
// one command after the other elsewhere. READs follow.
func TestWritesFirst(t *testing.T) {
	const w, s, r = verbs.WRRDMAWrite, verbs.WRSend, verbs.WRRDMARead
	for first, want := range map[bool][]verbs.SendOpcode{
		false: {w, s, w, s, s, w, s, r}, true: {w, w, w, s, s, s, s, r},
	} {
		m := newManual(t, verbstest.Options{}, Config{}, ioParam(8))
		m.q.p.dev.attr.WritesFirst = first
		qp := &orderedQP{QP: m.q.qp}
		m.q.qp = qp
		for i, op := range []nvme.Opcode{opRead, opRead, opNothing, opRead, opWrite} {
			sqe := m.host.keyed(command(op, uint16(i), 0, 4096), i*4096, 4096)
			m.host.send(&sqe, nil)
		}
		m.until(t, func() bool { return m.h.Completed.Load() == 5 })
		m.turn()
		testutil.True(t, len(qp.batches) > 0 && slices.Equal(qp.batches[0], want),
			"WRITEs first %v: posted %v, want %v", first, qp.batches, want)
		for range 5 {
			cqe, _, ok := m.host.response()
			testutil.True(t, ok && cqe.Status().OK(), "%v, %+v", cqe.Status(), m.host.bad)
		}
	}
}

// Capsules that come while the responses of all requests are in flight wait for a request, in
// order.
func TestCapsuleWaitsForRequest(t *testing.T) {
	for _, srqSize := range []int{0, srqSlabSlots} {
		m := newManual(t, verbstest.Options{}, Config{SRQSize: srqSize}, ioParam(2))
		sends := m.f.Inject(verbstest.Fault{
			Host: "target", Ops: verbstest.OpSend, Hold: true,
			Times: -1,
		})
		for cid := range uint16(4) {
			s := command(opNothing, cid, 0, 0)
			m.host.send(&s, nil)
			m.turn()
		}
		if len(m.q.capsules) != 2 || m.h.Prepared.Load() != 2 || m.q.taken != 2 {
			t.Fatalf("%d capsules wait, %d were prepared, %d are without a response",
				len(m.q.capsules), m.h.Prepared.Load(), m.q.taken)
		}
		sends.Release()
		m.until(t, func() bool { return m.h.Completed.Load() == 4 })
		for cid := range uint16(4) {
			if cqe, _, ok := m.host.response(); !ok || cqe.CID() != cid {
				t.Fatalf("response to %d, want %d (%+v)", cqe.CID(), cid, m.host.bad)
			}
		}
		m.turn()
		if want := max(srqSize, 2); m.q.recv.posted != want || m.q.taken != 0 {
			t.Errorf("%d of %d receives posted, %d commands without a response",
				m.q.recv.posted, want, m.q.taken)
		}
	}
}

// refusingQP refuses SEND_WITH_INV, or every work request.
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
	q := &queue{qp: fake, g: &group{}, p: &poller{dev: &device{}}}
	testutil.Must(t, q.postSend(slices.Clone(wrs)))
	want := []verbs.SendOpcode{verbs.WRRDMAWrite, verbs.WRSend, verbs.WRSend, verbs.WRSend}
	testutil.True(t, slices.Equal(fake.posted, want) && q.signaled == 3 &&
		q.p.dev.noInvalidate.Load(), "posted %v, %d signaled", fake.posted, q.signaled)
	broken := &queue{qp: &refusingQP{all: true}, g: &group{}, p: &poller{dev: &device{}}}
	err := broken.postSend(slices.Clone(wrs[1:]))
	testutil.True(t, err != nil && !broken.p.dev.noInvalidate.Load(),
		"a queue pair that takes nothing: %v", err)
}

func TestStaleCompletions(t *testing.T) {
	m := newManual(t, verbstest.Options{}, Config{}, ioParam(8))
	for _, id := range []uint64{
		workID(workRecv, m.q.id+1<<32, 0), workID(workSend, m.q.id+1<<16, 0),
		workID(workRead, m.q.id-1<<32, 3), 0, 1<<64 - 1,
	} {
		m.g.completed(&verbs.WC{WRID: id, Status: verbs.WCGeneralErr})
	}
	testutil.True(t, !m.q.failed && m.q.recv.posted == 8, "a completion of another queue was taken")
}
