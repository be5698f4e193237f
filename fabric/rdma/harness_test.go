package rdma

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net/netip"
	"runtime"
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

// harness is a target with one group on a real reactor and a fake fabric.
type harness struct {
	t       testing.TB
	f       *verbstest.Fabric
	tr      *Transport
	g       *group
	r       *reactor.Reactor
	loop    *aheadLoop
	h       *fabrictest.Disk
	l       fabric.Listener
	arena   *mem.Arena
	log     *testutil.Log
	cancel  context.CancelFunc
	stopped chan struct{}
	host    *testHost
	taken   []mem.Segment
	closed  bool
	stuck   bool
}

type harnessOptions struct {
	fabric verbstest.Options
	cfg    Config
	arena  int
	setup  func(*verbstest.Fabric)
	wrap   func(verbs.Provider) verbs.Provider
	stuck  bool // queue pairs will be left; see freeStuck
}

// joined makes a harness and a queue that is established.
func joined(t *testing.T, o harnessOptions, p hostParam) (*harness, *hostQueue) {
	t.Helper()
	b := newHarness(t, o)
	return b, b.host.connect(b.addr(), p)
}

func newHarness(t *testing.T, o harnessOptions) *harness {
	t.Helper()
	b := &harness{
		t: t, f: newFabric(o.fabric), log: new(testutil.Log),
		stopped: make(chan struct{}), stuck: o.stuck,
	}
	if o.setup != nil {
		o.setup(b.f)
	}
	o.cfg.Provider = b.f.Provider("target")
	if o.wrap != nil {
		o.cfg.Provider = o.wrap(o.cfg.Provider)
	}
	if o.cfg.Log == nil {
		o.cfg.Log = b.log.Logger()
	}
	if o.arena == 0 {
		o.arena = 4 << 20
	}
	o.cfg.SRQSize = cmp.Or(o.cfg.SRQSize, testSRQSize)
	// No test reaches these unless it calls later.
	o.cfg.ConnectTimeout = cmp.Or(o.cfg.ConnectTimeout, time.Hour)
	o.cfg.LingerTimeout = cmp.Or(o.cfg.LingerTimeout, time.Hour)
	var err error
	must := func(err error) {
		t.Helper()
		testutil.Must(t, err)
	}
	b.arena, err = mem.NewArena("test arena", o.arena)
	must(err)
	b.r, err = reactor.New(reactor.Config{CPU: -1})
	must(err)
	b.h = newHandler(t)
	b.tr = New(o.cfg)
	b.loop = &aheadLoop{Reactor: b.r, pending: make(map[*aheadTimer]struct{})}
	g, err := b.tr.NewGroup(fabric.GroupConfig{
		Loop: b.loop, Handler: b.h,
		Memory: mem.NewPool(b.arena, 0),
	})
	must(err)
	b.g = g.(*group)
	b.r.Attach(b.g)
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	go func() {
		defer close(b.stopped)
		testutil.Equal(t, b.r.Run(ctx), nil, "reactor")
	}()
	t.Cleanup(func() {
		if b.close(); t.Failed() {
			t.Logf("the log:\n%s", b.log)
		}
	})
	b.l, err = b.tr.Listen(fabric.Addr{
		Transport: nvme.TransportRDMA,
		AddrPort:  netip.AddrPortFrom(b.f.Addr("target"), 0),
	}, 7, b.adopt)
	must(err)
	b.host = newHost(t, b.f.Provider("host"))
	return b
}

func (b *harness) adopt(c fabric.Conn) {
	if err := b.g.Adopt(c); err != nil {
		fmt.Fprintf(b.log, "adopt: %v\n", err)
	}
}

func (b *harness) addr() netip.AddrPort { return b.l.Addr().AddrPort }

// close ends the target in order and checks for leaks.
func (b *harness) close() {
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
	testutil.Receive(b.t, "the shutdown", done)
	b.cancel()
	<-b.stopped
	check("group", b.g.Close())
	check("transport", b.tr.Close())
	check("reactor", b.r.Close())
	testutil.Equal(b.t, b.tr.Usage().Connections, 0, "connections are counted")
	check("arena", b.arena.Close())
	check("store", b.h.Region.Unmap())
	if live := b.f.Live("target"); live != (verbstest.Counts{}) && !b.stuck {
		b.t.Errorf("leaked: %+v\n%s", live, b.log)
	}
	testutil.Equal(b.t, b.h.Busy(), 0, "requests are not idle")
	if o, c := b.h.Opened.Load(), b.h.Closed.Load(); o != c {
		b.t.Errorf("%d sessions were opened, %d closed", o, c)
	}
	b.f.Close()
}

func (b *harness) on(fn func()) {
	b.t.Helper()
	done := make(chan struct{})
	b.r.Post(func() { fn(); close(done) })
	testutil.Receive(b.t, "a posted function", done)
}

// idle waits until the group has no queue, polls no device, and has all data memory back.
func (b *harness) idle() {
	b.t.Helper()
	testutil.Until(b.t, "no queues, no connections, all memory free", func() bool {
		n, free := 0, 0
		b.on(func() { n, free = b.g.queues.len()+len(b.g.pollers), b.arena.Available() })
		return n == 0 && free == len(b.arena.Region().Bytes()) && b.tr.Usage().Connections == 0
	})
}

// The commands of the handler. CDW12 is the length of the data, CDW10 its place.
const (
	opNothing nvme.Opcode = 0x00
	opWrite   nvme.Opcode = 0x01
	opRead    nvme.Opcode = 0x02
	opRefused nvme.Opcode = 0x11
	opLeave   nvme.Opcode = 0x30 // completes, then Disconnect
	opConnect nvme.Opcode = 0x31 // SetDepth
	// Those above, for other namespaces.
	opReadFail, opHold, opHoldWrite, opHoldRead, opZeroCopyRead, opZeroCopyWrite nvme.Opcode = 0xC0,
		0xC1, 0xC2, 0xC3, 0xC4, 0xC5
)

// special are opcodes of tests, with the opcode and the namespace that the handler sees.
var special = map[nvme.Opcode]struct {
	op   nvme.Opcode
	nsid uint32
}{
	opReadFail: {opRead, fabrictest.FailNSID}, opHold: {opNothing, fabrictest.HoldNSID},
	opHoldWrite: {opWrite, fabrictest.HoldNSID}, opHoldRead: {opRead, fabrictest.HoldNSID},
	opZeroCopyRead:  {opRead, fabrictest.ZeroCopyNSID},
	opZeroCopyWrite: {opWrite, fabrictest.ZeroCopyNSID},
}

// newHandler returns a controller with some memory.
func newHandler(t testing.TB) *fabrictest.Disk {
	h := fabrictest.NewDisk(t)
	h.Bytes, h.Hold = true, true
	h.Others = map[nvme.Opcode]func(*fabric.Request){
		opLeave: func(r *fabric.Request) {
			h.Complete(r, nvme.Success, 0)
			r.Queue.Disconnect(fmt.Errorf("asked to"))
		},
		opConnect: func(r *fabric.Request) {
			claim := fabric.Claim{
				Host: fmt.Sprintf("%p", r.Queue), Proven: !h.Unproven.Load(), Admin: true,
			}
			if host := r.SQE.CDW(11); host != 0 { // one of many queues
				claim.Host, claim.Admin = fmt.Sprint(host), false
			}
			st := nvme.Success
			if r.Queue.SetDepth(int(r.SQE.CDW(10)), fabric.Allowed, claim) != nil {
				st = nvme.ConnectInvalidParameters
			}
			h.Complete(r, st, 0)
		},
	}
	return h
}

// writesTo notes the regions to which the data of writes comes. The result reports whether it came
// to the arena, and whether to a single region.
func (b *harness) writesTo() (look func() (arena, single bool)) {
	regions := map[mem.RegionID]bool{}
	b.on(func() {
		b.h.OnExecute = func(reqs []*fabric.Request) {
			for _, r := range reqs {
				for _, s := range r.Segs {
					if r.SQE.Opcode() == opWrite {
						regions[s.Region] = true
					}
				}
			}
		}
	})
	return func() (arena, single bool) {
		b.on(func() { arena, single = regions[b.arena.Region().ID()], len(regions) == 1 })
		return arena, single
	}
}

// letGo completes the requests that the handler holds.
func (b *harness) letGo() { b.on(b.h.Release) }

// fragment allocates every other page of the arena; defragment frees them.
func (b *harness) fragment() {
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

func (b *harness) defragment() {
	b.arena.Free(b.taken)
	b.taken = nil
}

func netipWithPort(a netip.AddrPort, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr(), port)
}

// first returns the oldest queue of the group.
func (g *group) first() *queue {
	for q := range g.queues.all() {
		return q
	}
	return nil
}

// testHost is a machine that connects to the target with bare verbs, so it can make any mistake.
type testHost struct {
	t      testing.TB
	cm     verbs.CM
	events chan verbs.Event
	freed  map[verbs.ID]bool
	end    chan struct{}
}

func newHost(t testing.TB, p verbs.Provider) *testHost {
	t.Helper()
	cm := testutil.Value(p.NewCM())(t)
	h := &testHost{
		t: t, cm: cm, events: make(chan verbs.Event, 256),
		freed: make(map[verbs.ID]bool), end: make(chan struct{}),
	}
	go func() {
		defer close(h.end)
		for {
			ev, err := cm.Next()
			if err != nil {
				return
			}
			h.events <- ev
		}
	}()
	t.Cleanup(func() {
		if err := cm.Close(); err != nil {
			t.Errorf("close host: %v", err)
			return
		}
		<-h.end
	})
	return h
}

func (h *testHost) event(want verbs.EventType) verbs.Event {
	h.t.Helper()
	for {
		ev := testutil.Receive(h.t, want.String(), h.events)
		// It was read before the ID was freed.
		if ev.Type != want && (ev.Type == verbs.EventTimewaitExit || h.freed[ev.ID]) {
			continue
		}
		if ev.Type != want {
			h.t.Fatalf("event %v (status %d), want %v", ev.Type, ev.Status, want)
		}
		return ev
	}
}

// hostParam is the request of a host.
type hostParam struct {
	qid, hrqsize, hsqsize, cntlid uint16
	private                       []byte // instead of a proper record
	reads                         uint8
	rnrRetry                      uint8
	recvs                         int // receives posted, < 0 for none, 0 for hrqsize
}

func adminParam() hostParam { return hostParam{hrqsize: 32, hsqsize: 31, reads: 16, rnrRetry: 7} }

func ioParam(depth uint16) hostParam {
	return hostParam{qid: 1, hrqsize: depth, hsqsize: depth - 1, cntlid: 1, reads: 16, rnrRetry: 7}
}

// hostQueue is a host's end of a queue.
type hostQueue struct {
	t     testing.TB
	h     *testHost
	id    verbs.ID
	pd    verbs.PD
	cq    verbs.CQ
	qp    verbs.QP
	mr    verbs.MR
	mem   *mem.Region
	buf   []byte // data
	wcs   []verbs.WC
	depth int
	freed bool
	rwrs  [1]verbs.RecvWR
	swrs  [1]verbs.SendWR
	sges  [2]verbs.SGE
	bad   verbs.WC // the first completion that failed
	next  int
}

const (
	hostCapsules  = 0       // 256 slots of 64 + 4096 bytes
	hostResponses = 2 << 20 // 256 slots of 64 bytes
	hostData      = 4 << 20
	hostMemory    = 12 << 20
)

// dial resolves the address and makes a queue pair with receives posted.
func (h *testHost) dial(dst netip.AddrPort, p hostParam) *hostQueue {
	t := h.t
	t.Helper()
	must := func(err error) {
		t.Helper()
		testutil.Must(t, err)
	}
	id, err := h.cm.NewID()
	must(err)
	must(id.ResolveAddr(netip.AddrPort{}, dst, testutil.Patience))
	h.event(verbs.EventAddrResolved)
	must(id.ResolveRoute(testutil.Patience))
	h.event(verbs.EventRouteResolved)
	q := &hostQueue{t: t, h: h, id: id, wcs: make([]verbs.WC, 16)}
	q.depth = min(int(p.hsqsize)+1, 256)
	q.pd, err = id.Device().AllocPD()
	must(err)
	q.cq, err = id.Device().CreateCQ(2048, nil, 0)
	must(err)
	q.mem, err = mem.Map("test host", hostMemory)
	must(err)
	q.buf = q.mem.Bytes()[hostData:]
	q.mr, err = q.pd.RegMR(q.mem.Bytes(),
		verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
	must(err)
	q.qp, err = id.CreateQP(q.pd,
		verbs.QPInit{
			SendCQ: q.cq, RecvCQ: q.cq, MaxSendWR: 512, MaxRecvWR: 512, MaxSendSGE: 2,
			MaxRecvSGE: 1,
		})
	must(err)
	t.Cleanup(q.free)
	n := p.recvs
	if n == 0 {
		n = min(int(p.hrqsize), 256)
	}
	for i := 0; i < n; i++ {
		q.postRecv(i)
	}
	return q
}

func (q *hostQueue) postRecv(i int) {
	q.rwrs[0] = verbs.RecvWR{WRID: uint64(i), NumSGE: 1}
	q.rwrs[0].SGE[0] = verbs.SGE{
		Addr: mem.Addr(q.mem.Bytes()[hostResponses+64*i:]), Length: 64,
		LKey: q.mr.LKey(),
	}
	testutil.Value(q.qp.PostRecv(q.rwrs[:]))(q.t)
}

func (q *hostQueue) request(p hostParam) {
	q.t.Helper()
	private := p.private
	if private == nil {
		private = cmwire.Bytes(cmwire.Req{
			QID: p.qid, HRQSize: p.hrqsize, HSQSize: p.hsqsize, CNTLID: p.cntlid,
		})
	}
	testutil.Must(q.t, q.id.Connect(verbs.ConnParam{
		PrivateData: private, ResponderResources: p.reads,
		RetryCount: 7, RNRRetryCount: p.rnrRetry, FlowControl: true,
	}))
}

// connect makes a queue that is established.
func (h *testHost) connect(dst netip.AddrPort, p hostParam) *hostQueue {
	h.t.Helper()
	q := h.dial(dst, p)
	q.request(p)
	ev := h.event(verbs.EventEstablished)
	rep, ok := cmwire.Parse[cmwire.Rep](ev.Param.PrivateData)
	if !ok || rep.RecFmt != 0 || int(rep.CRQSize) != int(p.hsqsize)+1 {
		h.t.Fatalf("accept %x", ev.Param.PrivateData)
	}
	_ = q.qp.ShortenRNRTimer()        // iWARP has none
	if ev.Param.InitiatorDepth != 0 { // the READs that the target serves
		h.t.Fatalf("the target serves %d RDMA READs", ev.Param.InitiatorDepth)
	}
	return q
}

// associate makes a queue with a successful Connect command.
func (h *testHost) associate(dst netip.AddrPort, p hostParam) *hostQueue {
	h.t.Helper()
	q := h.connect(dst, p)
	if st := q.do(command(opConnect, 1, uint64(p.hsqsize)+1, 0), nil); !st.OK() {
		h.t.Fatalf("Connect: %v", st)
	}
	return q
}

// rejected expects the connection to be refused.
func (h *testHost) rejected(dst netip.AddrPort, p hostParam) cmwire.Status {
	h.t.Helper()
	q := h.dial(dst, p)
	defer q.free()
	q.request(p)
	ev := h.event(verbs.EventRejected)
	rej, ok := cmwire.Parse[cmwire.Rej](ev.Param.PrivateData)
	if !ok {
		h.t.Fatalf("reject without a record: %x", ev.Param.PrivateData)
	}
	return rej.Status
}

func (q *hostQueue) free() {
	if q.freed {
		return
	}
	q.freed, q.h.freed[q.id] = true, true
	for _, err := range []error{
		q.qp.Destroy(), q.id.Destroy(), q.cq.Destroy(), q.mr.Dereg(),
		q.pd.Dealloc(), q.mem.Unmap(),
	} {
		if err != nil {
			q.t.Errorf("free host queue: %v", err)
		}
	}
}

// disconnect leaves in order.
func (q *hostQueue) disconnect() { testutil.Equal(q.t, q.id.Disconnect(), nil, "disconnect") }

// command makes an SQE for the test handler.
func command(op nvme.Opcode, cid uint16, slba uint64, n uint32) (s nvme.SQE) {
	nsid := uint32(1)
	if o, ok := special[op]; ok {
		op, nsid = o.op, o.nsid
	}
	s.SetOpcode(op)
	s.SetFlags(1 << 6)
	s.SetCID(cid)
	s.SetNSID(nsid)
	s.SetCDW64(10, slba)
	s.SetCDW(12, n)
	return s
}

// keyed adds a keyed data block to the SQE: n bytes of the data buffer from off.
func (q *hostQueue) keyed(s nvme.SQE, off int, n uint32) nvme.SQE {
	s.SGL1().SetKeyed(nvme.SGLSubtypeAddress, mem.Addr(q.buf[off:]), n, q.mr.RKey())
	return s
}

// send sends a capsule: the SQE and data after it.
func (q *hostQueue) send(s *nvme.SQE, data []byte) {
	q.t.Helper()
	q.sendBytes(s[:], data)
}

func (q *hostQueue) sendBytes(sqe, data []byte) {
	q.t.Helper()
	slot := q.mem.Bytes()[hostCapsules+q.next*8192:][:8192]
	q.next = (q.next + 1) % 256
	copy(slot, sqe)
	copy(slot[len(sqe):], data)
	q.sges[0] = verbs.SGE{
		Addr: mem.Addr(slot), Length: uint32(len(sqe) + len(data)),
		LKey: q.mr.LKey(),
	}
	q.swrs[0] = verbs.SendWR{
		WRID: 1 << 32, Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
		NumSGE: 1,
	}
	testutil.Value(q.qp.PostSend(q.swrs[:], q.sges[:1]))(q.t)
}

func (q *hostQueue) completion() verbs.WC {
	polled := func() bool {
		n := testutil.Value(q.cq.Poll(q.wcs[:1]))(q.t)
		return n > 0
	}
	soon(q.t, "a completion", polled)
	return q.wcs[0]
}

// soon is testutil.Until for conditions that usually take microseconds.
func soon(t testing.TB, what string, cond func() bool) {
	for range 1000 {
		if cond() {
			return
		}
		runtime.Gosched()
	}
	testutil.Until(t, what, cond)
}

// response waits for the next response and posts its receive again. ok is false if the queue
// failed.
func (q *hostQueue) response() (cqe nvme.CQE, wc verbs.WC, ok bool) {
	for {
		wc = q.completion()
		if wc.Status != verbs.WCSuccess {
			q.bad = wc
			return cqe, wc, false
		}
		if wc.Opcode != verbs.WCRecv {
			continue
		}
		copy(cqe[:], q.mem.Bytes()[hostResponses+64*int(wc.WRID):])
		if wc.ByteLen != nvme.CQESize {
			q.t.Fatalf("response of %d bytes", wc.ByteLen)
		}
		q.postRecv(int(wc.WRID))
		return cqe, wc, true
	}
}

// do sends a capsule and returns the status of the response to it.
func (q *hostQueue) do(s nvme.SQE, data []byte) nvme.Status {
	q.t.Helper()
	q.send(&s, data)
	cqe, _, ok := q.response()
	if !ok {
		q.t.Fatalf("the queue failed: %+v", q.bad)
	}
	testutil.MustEqual(q.t, cqe.CID(), s.CID(), "the command of the response")
	return cqe.Status()
}

// onSoft: the tests run on the soft stack, not on the fake.
var onSoft bool

// newFabric makes a network of machines. Soft iWARP has no network in memory.
func newFabric(o verbstest.Options) *verbstest.Fabric {
	o.Soft = onSoft && !o.IWARP
	return verbstest.New(o)
}

// twice runs the tests on the fake, which chooses the worst order of events, and on the soft stack.
type twice struct{ *testing.M }

func (m twice) Run() int {
	code := m.M.Run()
	for _, name := range []string{"test.list", "test.bench"} {
		if flag.Lookup(name).Value.String() != "" {
			return code
		}
	}
	if err := flag.Set("test.testlogfile", ""); err != nil { // closed once only
		panic(err)
	}
	fmt.Println("the same tests on the soft stack:")
	onSoft = true
	return max(code, m.M.Run())
}

func TestMain(m *testing.M) {
	testutil.Main(twice{m}, func() error {
		if u := mem.Usage(); len(u) > 0 {
			return fmt.Errorf("leaked memory: %v", u)
		}
		return nil
	})
}

// cqDevice is a device with nothing but completion queues.
type cqDevice struct{ verbs.Device }

func (cqDevice) CreateCQ(int, verbs.CompChannel, int) (verbs.CQ, error) { return nil, nil }

// A thousand queues of the usual depth share few completion queues. A device that has only small
// ones needs more.
func TestCompletionQueuesAreShared(t *testing.T) {
	const queues, need = 1024, 3*128 + 16
	for most, want := range map[int]int{1 << 20: 6, 32767: 14} { // 32767: soft RoCE
		p := &poller{
			g:   &group{},
			dev: &device{dev: cqDevice{}, attr: verbs.DeviceAttr{MaxCQE: most}},
		}
		for range queues {
			testutil.Value(p.acquireCQ(need, nil))(t)
		}
		promised := 0
		for _, c := range p.cqs {
			testutil.True(t, c.used <= c.size && c.size <= most, "%d of %d entries are promised",
				c.used, c.size)
			promised += c.used
		}
		testutil.True(t, promised == queues*need && len(p.cqs) == want,
			"%d completion queues for %d entries, want %d", len(p.cqs), promised, want)
	}
}
