package rdma

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

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
