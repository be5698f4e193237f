package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/reactor"
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
		testutil.MustTrue(t, len(m.q.capsules) == 2 && m.h.Prepared.Load() == 2 && m.q.taken == 2,
			"%d capsules wait, %d were prepared, %d are without a response", len(m.q.capsules),
			m.h.Prepared.Load(), m.q.taken)
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

// aheadLoop is a reactor with a clock that may be ahead of real time.
type aheadLoop struct {
	*reactor.Reactor
	ahead   int64 // reactor only, like pending
	pending map[*aheadTimer]struct{}
}

type aheadTimer struct {
	at   int64
	stop func()
	fn   func()
}

func (l *aheadLoop) Now() int64 { return l.Reactor.Now() + l.ahead }

func (l *aheadLoop) Clock() int64 { return l.Reactor.Clock() + l.ahead }

func (l *aheadLoop) After(d int64, fn func()) (stop func()) {
	t := &aheadTimer{at: l.Now() + d, fn: fn}
	end := func() { t.stop(); delete(l.pending, t) }
	t.stop = l.Reactor.After(d, func() { end(); fn() })
	l.pending[t] = struct{}{}
	return end
}

// later advances the clock of the target and runs the timers due then. A timer that they set waits
// for the next call.
func (b *harness) later(d time.Duration) {
	b.t.Helper()
	b.on(func() {
		l := b.loop
		l.ahead += d.Nanoseconds()
		var due []*aheadTimer
		for t := range l.pending {
			if t.at <= l.Now() {
				due = append(due, t)
			}
		}
		slices.SortFunc(due, func(a, b *aheadTimer) int { return cmp.Compare(a.at, b.at) })
		for _, t := range due {
			if _, ok := l.pending[t]; ok { // no timer before stopped it
				t.stop()
				delete(l.pending, t)
				t.fn()
			}
		}
	})
}

// stick waits until the target has something in flight and lets SendTimeout pass.
func (b *harness) stick() {
	b.t.Helper()
	testutil.Until(b.t, "something is in flight", func() (ok bool) {
		b.on(func() {
			for q := range b.g.queues.all() {
				ok = ok || q.signaled > 0
			}
		})
		return ok
	})
	for range 2 { // the first tick sets the limit
		b.later(b.tr.cfg.SendTimeout)
	}
}

// newEvictHarness returns a harness with budgets for 16 connections of an address.
func newEvictHarness(t *testing.T, o harnessOptions) *harness {
	o.cfg.Connections = 64
	return newHarness(t, o)
}

// Established connections without a Connect command make room for newer ones. The queues of hosts
// stay.
func TestEvictEstablished(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b := newEvictHarness(t, o)
		host := b.host.associate(b.addr(), ioParam(8))
		idle := b.host.connect(b.addr(), adminParam())
		for range 15 {
			b.host.connect(b.addr(), adminParam())
		}
		newer := b.host.dial(b.addr(), ioParam(8))
		newer.request(ioParam(8))
		evicted, established := false, false
		for !evicted || !established {
			switch ev := <-b.host.events; {
			case ev.Type == verbs.EventDisconnected && ev.ID == idle.id:
				evicted = true
			case ev.Type == verbs.EventEstablished && ev.ID == newer.id:
				established = true
			default:
				t.Fatalf("event %v", ev.Type)
			}
		}
		for _, q := range []*hostQueue{host, newer} {
			testutil.Equal(t, q.do(command(opNothing, 1, 0, 0), nil), nvme.Success, "")
		}
		testutil.Until(t, "it has left", func() bool {
			u := b.tr.Usage()
			return u.Connections == 17 && u.Unassociated == 16 && u.Evicted == 1
		})
	})
}

// A connection request that is evicted before its queue is made is rejected, and takes no resources
// of the device.
func TestEvictRequested(t *testing.T) {
	b := newEvictHarness(t, harnessOptions{})
	// The others are refused after one of them was evicted.
	b.host.associate(b.addr(), ioParam(8))
	made := b.host.connect(b.addr(), adminParam()) // also makes the poller
	b.g.setupMu.Lock()                             // the device is slow
	var waiting []*hostQueue
	for range 16 {
		q := b.host.dial(b.addr(), adminParam())
		q.request(adminParam())
		waiting = append(waiting, q)
	}
	testutil.Until(t, "the first one is evicted", func() bool { return b.tr.Usage().Evicted == 1 })
	b.host.event(verbs.EventDisconnected)
	last := b.host.dial(b.addr(), adminParam())
	last.request(adminParam())
	testutil.Until(t, "the next one is evicted", func() bool { return b.tr.Usage().Evicted == 2 })
	b.g.setupMu.Unlock()
	established := 0
	for range 17 {
		switch ev := <-b.host.events; ev.Type {
		case verbs.EventEstablished:
			established++
		case verbs.EventRejected:
			rej, ok := cmwire.Parse[cmwire.Rej](ev.Param.PrivateData)
			testutil.True(t, ev.ID == waiting[0].id && ok && rej.Status == cmwire.NoResources,
				"rejected: %x", ev.Param.PrivateData)
		default:
			t.Fatalf("event %v", ev.Type)
		}
	}
	testutil.Equal(t, established, 16, "are established")
	testutil.Until(t, "the others have left", func() bool {
		return b.tr.Usage().Connections == 17 && b.f.Live("target").QPs == 17
	})
	made.free()
}

// While queues are made for strangers, queues for addresses of hosts do not wait for them.
func TestStrangersWait(t *testing.T) {
	b := newHarness(t, harnessOptions{setup: func(f *verbstest.Fabric) {
		f.AddHost("stranger", verbstest.RoCE("roce0", netip.MustParseAddr("192.0.2.77")))
	}})
	b.host.associate(b.addr(), ioParam(8))
	b.g.strangersMu.Lock() // a queue is being made
	stranger := newHost(t, b.f.Provider("stranger"))
	q := stranger.dial(b.addr(), adminParam())
	q.request(adminParam())
	testutil.Until(t, "it has asked", func() bool { return b.tr.Usage().Unassociated == 1 })
	b.host.associate(b.addr(), ioParam(8))
	b.g.strangersMu.Unlock()
	stranger.event(verbs.EventEstablished)
}

// A queue with 128 commands delays the one command of another queue by a turn, not by all of them.
// Each poll serves one turn.
func TestTurns(t *testing.T) {
	for name, tt := range map[string]struct {
		op   nvme.Opcode
		size uint32
		turn int // commands
	}{
		"small":  {opRead, 512, turnCommands},
		"large":  {opRead, 128 << 10, 3},
		"writes": {opWrite, 128 << 10, 3},
	} {
		for srq, size := range map[string]int{"": 0, " SRQ": 2 * srqSlabSlots} {
			t.Run(name+srq, func(t *testing.T) {
				const depth = 128
				m := newManual(t, verbstest.Options{}, Config{SRQSize: size}, ioParam(depth))
				other := m.connect(t, ioParam(2))
				for cid := range uint16(depth) {
					s := m.host.keyed(command(tt.op, cid, 0, tt.size), 0, tt.size)
					m.host.send(&s, nil)
				}
				s := other.keyed(command(opRead, 7, 0, 4096), 0, 4096)
				other.send(&s, nil)
				m.turn()
				if n := int(m.h.Prepared.Load()); n != tt.turn+1 {
					t.Errorf("%d commands have begun, want %d and the other", n, tt.turn)
				}
				testutil.True(t, !m.g.Arm(), "the reactor may sleep although commands wait")
				if cqe, _, ok := other.response(); !ok || !cqe.Status().OK() || cqe.CID() != 7 {
					t.Errorf("the other: %v, %v", cqe.Status(), ok)
				}
				m.turn()
				testutil.Equal(t, int(m.h.Prepared.Load()), 2*tt.turn+1,
					"commands have begun in two polls")
				m.until(t, func() bool { return m.h.Completed.Load() == depth+1 })
			})
		}
	}
}

// Responses that complete at once, after a disk has answered, are also sent in turns.
func TestTurnsOfResponses(t *testing.T) {
	const depth, size = 16, 128 << 10
	m := newManual(t, verbstest.Options{}, Config{}, ioParam(depth))
	hold := m.f.Inject(verbstest.Fault{
		Host: "target", Ops: verbstest.OpWrite, Hold: true, Times: -1,
	})
	for cid := range uint16(depth) {
		s := m.host.keyed(command(opHoldRead, cid, 0, size), 0, size)
		m.host.send(&s, nil)
	}
	m.until(t, func() bool { return len(m.h.Held) == depth })
	m.h.Release()
	for polls := 1; polls <= 2; polls++ {
		m.turn()
		testutil.Equal(t, m.q.sqSize-m.q.sqFree, 2*3*polls, "work requests after %d polls", polls)
	}
	hold.Release()
	m.until(t, func() bool { return m.q.sqFree == m.q.sqSize })
}

// TestManyEnd: however many queues end together, and however deep they are, a poll takes back some
// of their requests.
func TestManyEnd(t *testing.T) {
	for queues, depth := range map[int]uint16{40: 128, 1: DepthLimit} {
		t.Run(fmt.Sprint(queues), func(t *testing.T) {
			m := newManual(t, verbstest.Options{}, Config{MaxDepth: int(depth)}, ioParam(depth))
			for range queues - 1 {
				m.connect(t, ioParam(depth))
			}
			for q := range m.g.queues.all() {
				q.fail(errHostLeft)
			}
			for polls, ended := 1, 0; ended < queues; polls++ {
				m.turn()
				ended = int(m.h.Closed.Load())
				testutil.MustTrue(t, ended*int(depth) <= polls*(sendMost+takeMost) &&
					polls <= queues*int(depth)/takeMost, "%d queues end in %d polls", ended, polls)
			}
		})
	}
}

// A host that holds all memory and takes no responses, or does not let its data be read, ends
// before a waiting command of another host fails.
func TestHolderEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		op   nvme.Opcode
		hold verbstest.Fault
	}{
		"no receives": {opRead, verbstest.Fault{Ops: verbstest.OpSend, Times: 1}},
		"no READs":    {opWrite, verbstest.Fault{Ops: verbstest.OpRead, Times: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newManual(t, verbstest.Options{}, Config{DrainTimeout: time.Minute}, ioParam(8))
			m.loop.clock = 1
			victim := m.connect(t, ioParam(8))
			tt.hold.Host, tt.hold.Hold = "target", true
			m.f.Inject(tt.hold)
			for cid := range uint16(4) {
				s := m.host.keyed(command(tt.op, cid, 0, 1<<20), 0, 1<<20)
				m.host.send(&s, nil)
				m.until(t, func() bool { return m.g.cfg.Memory.Available() == (3-int(cid))<<20 })
			}
			s := victim.keyed(command(opRead, 9, 0, 4096), 0, 4096)
			victim.send(&s, nil)
			m.until(t, m.g.cfg.Memory.HasWaiters)
			for waited := int64(0); !m.q.failed; waited += m.g.t.cfg.tickInterval() {
				testutil.MustTrue(t, waited <= m.g.t.cfg.MemoryTimeout.Nanoseconds()/2,
					"the host keeps the memory")
				m.loop.clock += m.g.t.cfg.tickInterval()
				m.g.tick()
			}
			testutil.True(t, errors.Is(m.q.reason, errHolds), "the queue ends because %v",
				m.q.reason)
			m.until(t, func() bool { return m.q.state >= queueDestroyed })
			m.until(t, func() bool { return !m.g.cfg.Memory.HasWaiters() })
			m.turn()
			cqe, _, ok := victim.response()
			testutil.True(t, ok && cqe.Status().OK(), "the other host: %v, %v", cqe.Status(), ok)
		})
	}
}

// A host that lets a response leave now and then cannot keep the rest in flight forever. A host
// that takes its responses in time is not ended.
func TestTrickleEnds(t *testing.T) {
	const inFlight = 32
	for name, tt := range map[string]struct {
		free   int // responses that leave from one tick to the next
		reason error
	}{
		"one at a time": {1, errStuck}, "all": {inFlight, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := newManual(t, verbstest.Options{}, Config{}, ioParam(64))
			var held []*verbstest.Injection
			send := func() {
				held = append(held, m.f.Inject(verbstest.Fault{
					Host: "target", Ops: verbstest.OpSend, Hold: true,
				}))
				s := command(opNothing, uint16(len(held)), 0, 0)
				m.host.send(&s, nil)
				m.turn()
			}
			for range inFlight {
				send()
			}
			for range inFlight {
				m.g.tick()
				if m.loop.clock += m.g.t.cfg.tickInterval(); m.q.failed {
					break
				}
				for range tt.free {
					held[0].Release()
					held = held[1:]
					_, _, ok := m.host.response()
					testutil.MustTrue(t, ok, "%+v", m.host.bad)
					send()
				}
			}
			testutil.True(t, errors.Is(m.q.reason, tt.reason), "the queue ends because %v, want %v",
				m.q.reason, tt.reason)
			for _, i := range held {
				i.Release()
			}
		})
	}
}
