package host

import (
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/cmwire"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
)

const (
	fakeCapsule = 64 + 8192
	fakeData    = 1 << 20
)

// fakeRDMA is a small NVMe/RDMA controller on a fake fabric: one goroutine for connection events,
// one per queue, one command at a time.
type fakeRDMA struct {
	t    *testing.T
	fab  *verbstest.Fabric
	addr netip.AddrPort
	cm   verbs.CM
	core *fakeCore
	wg   sync.WaitGroup

	requests sync.Map // cmwire.Req by queue ID
	// reject, if not Accepted, refuses connections.
	reject cmwire.Status
	// override, if set, is called with every command and answers it if it returns true.
	override func(q *fakeRDMAQueue, sqe *nvme.SQE) bool
}

type fakeRDMAQueue struct {
	f *fakeRDMA
	fakeQueue
	id     verbs.ID
	pd     verbs.PD
	ch     verbs.CompChannel
	cq     verbs.CQ
	qp     verbs.QP
	region *mem.Region
	mr     verbs.MR
	depth  int
	wait   []verbs.WC // receives that completed while send waited

	mu    sync.Mutex
	ended bool

	sqe nvme.SQE // the current command
	key uint32   // of its data
}

func newFakeRDMA(t *testing.T, configure ...func(*fakeRDMA)) *fakeRDMA {
	t.Helper()
	fab := verbstest.New(verbstest.Options{})
	fab.AddHost("controller", verbstest.RoCE("fake0", netip.MustParseAddr("10.0.0.1")))
	f := &fakeRDMA{t: t, fab: fab, core: new(fakeCore)}
	for _, fn := range configure {
		fn(f)
	}
	var err error
	if f.cm, err = fab.Provider("controller").NewCM(); err != nil {
		t.Fatal(err)
	}
	f.addr = netip.AddrPortFrom(fab.Addr("controller"), 4420)
	listener := testutil.Value(f.cm.Listen(f.addr, 16, 0))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.events()
	}()
	t.Cleanup(func() {
		f.wg.Wait() // hosts have disconnected: their cleanup runs first
		testutil.Check(t, listener.Destroy())
		testutil.Check(t, f.cm.Close())
		<-done
		fab.Close()
		for _, machine := range []string{"controller", "host"} {
			testutil.Equal(t, fab.Live(machine), (verbstest.Counts{}), "%s: not freed", machine)
		}
	})
	return f
}

func (f *fakeRDMA) events() {
	for {
		ev, err := f.cm.Next()
		if err != nil {
			return
		}
		switch ev.Type {
		case verbs.EventConnectRequest:
			f.accept(ev)
		case verbs.EventEstablished, verbs.EventTimewaitExit:
		default: // the connection has ended, or failed before it was established
			if q, ok := ev.ID.Context().(*fakeRDMAQueue); ok {
				q.mu.Lock()
				if !q.ended {
					_ = q.id.Disconnect()
					_ = q.qp.ToError()
				}
				q.mu.Unlock()
			}
		}
	}
}

func (f *fakeRDMA) accept(ev verbs.Event) {
	f.wg.Add(1) // before the host sees the connection and the test may end
	if f.reject != cmwire.Accepted {
		defer f.wg.Done()
		_ = ev.ID.Reject(cmwire.Bytes(cmwire.Rej{Status: f.reject}))
		_ = ev.ID.Destroy()
		return
	}
	req, ok := cmwire.ParseReq(ev.Param.PrivateData)
	if !ok {
		f.t.Error("no private data")
		f.wg.Done()
		return
	}
	f.requests.Store(req.QID, req)
	q := &fakeRDMAQueue{f: f, id: ev.ID, depth: int(req.HSQSize) + 1}
	ev.ID.SetContext(q)
	q.must(q.create())
	q.must(ev.ID.Accept(verbs.ConnParam{
		PrivateData:    cmwire.Bytes(cmwire.Rep{CRQSize: uint16(q.depth)}),
		InitiatorDepth: ev.Param.InitiatorDepth, RNRRetryCount: 7, RetryCount: 7,
	}))
	go func() {
		defer f.wg.Done()
		q.serve()
		q.free()
	}()
}

func (q *fakeRDMAQueue) must(err error) { testutil.Check(q.f.t, err) }

func (q *fakeRDMAQueue) create() (err error) {
	dev := q.id.Device()
	if q.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if q.ch, err = dev.CreateCompChannel(); err != nil {
		return err
	}
	if q.cq, err = dev.CreateCQ(4*q.depth+4, q.ch, 0); err != nil {
		return err
	}
	q.region, err = mem.Map("fake controller", q.depth*fakeCapsule+nvme.CQESize+fakeData)
	if err != nil {
		return err
	}
	if q.mr, err = q.pd.RegMR(q.region.Bytes(), verbs.AccessLocalWrite); err != nil {
		return err
	}
	q.qp, err = q.id.CreateQP(q.pd, verbs.QPInit{
		SendCQ: q.cq, RecvCQ: q.cq, MaxSendWR: 4, MaxRecvWR: q.depth, MaxSendSGE: 1, MaxRecvSGE: 1,
	})
	for i := range q.depth {
		q.post(i)
	}
	return err
}

func (q *fakeRDMAQueue) sge(off, n int) verbs.SGE {
	return verbs.SGE{
		Addr: mem.Addr(q.region.Bytes()) + uint64(off), Length: uint32(n),
		LKey: q.mr.LKey(),
	}
}

func (q *fakeRDMAQueue) post(i int) {
	_, err := q.qp.PostRecv([]verbs.RecvWR{{
		WRID: uint64(i), NumSGE: 1,
		SGE: [2]verbs.SGE{q.sge(i*fakeCapsule, fakeCapsule)},
	}})
	if err != nil {
		q.f.t.Log(err) // the connection ends
	}
}

// next waits for a work completion. It returns false if the connection has ended.
func (q *fakeRDMAQueue) next() (verbs.WC, bool) {
	for {
		var wc [1]verbs.WC
		n, err := q.cq.Poll(wc[:])
		q.must(err)
		if n == 1 {
			return wc[0], wc[0].Status == verbs.WCSuccess
		}
		q.must(q.cq.ReqNotify())
		if n, _ = q.cq.Poll(wc[:]); n == 1 {
			return wc[0], wc[0].Status == verbs.WCSuccess
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(q.ch.FD()), Events: unix.POLLIN}}, 5000)
		_, err = q.ch.Drain()
		q.must(err)
	}
}

func (q *fakeRDMAQueue) serve() {
	for {
		var wc verbs.WC
		if len(q.wait) > 0 {
			wc, q.wait = q.wait[0], q.wait[1:]
		} else if w, ok := q.next(); ok {
			wc = w
		} else {
			return
		}
		b := q.region.Bytes()[int(wc.WRID)*fakeCapsule:][:wc.ByteLen]
		q.sqe = nvme.SQE(b)
		data := append([]byte(nil), b[nvme.SQESize:]...)
		q.post(int(wc.WRID))
		q.fetched()
		d := q.sqe.SGL1()
		q.key = d.Key()
		if q.f.override != nil && q.f.override(q, &q.sqe) {
			continue
		}
		if dir := directionOf(&q.sqe); dir == toCtrl && d.Type() == nvme.SGLKeyedDataBlock &&
			d.KeyedLength() > 0 {
			data = q.dataArea()[:d.KeyedLength()]
			wr := verbs.SendWR{Opcode: verbs.WRRDMARead, RemoteAddr: d.Address(), RKey: d.Key()}
			if !q.send(wr, q.dataOff(), len(data)) {
				return
			}
		}
		if q.f.core.command(q, &q.fakeQueue, &q.sqe, data) != nil {
			return
		}
	}
}

func (q *fakeRDMAQueue) cqeOff() int      { return q.depth * fakeCapsule }
func (q *fakeRDMAQueue) dataOff() int     { return q.cqeOff() + nvme.CQESize }
func (q *fakeRDMAQueue) dataArea() []byte { return q.region.Bytes()[q.dataOff():] }

// send posts a work request on n bytes at off and waits for it.
func (q *fakeRDMAQueue) send(wr verbs.SendWR, off, n int) bool {
	wr.Flags, wr.NumSGE, wr.WRID = verbs.SendSignaled, 1, 1<<32
	if _, err := q.qp.PostSend([]verbs.SendWR{wr}, []verbs.SGE{q.sge(off, n)}); err != nil {
		return false
	}
	for {
		wc, ok := q.next()
		if !ok || wc.WRID == 1<<32 {
			return ok
		}
		q.wait = append(q.wait, wc)
	}
}

func (q *fakeRDMAQueue) sendData(cid uint16, data []byte) error {
	copy(q.dataArea(), data)
	d := q.sqe.SGL1()
	wr := verbs.SendWR{Opcode: verbs.WRRDMAWrite, RemoteAddr: d.Address(), RKey: d.Key()}
	if !q.send(wr, q.dataOff(), len(data)) {
		return ErrClosed
	}
	return q.respond(cid, 0, 0)
}

func (q *fakeRDMAQueue) respond(cid uint16, result uint64, st nvme.Status) error {
	cqe := q.cqe(cid, result, st)
	return q.sendResponse(cqe[:], verbs.SendWR{Opcode: verbs.WRSend})
}

func (q *fakeRDMAQueue) sendResponse(b []byte, wr verbs.SendWR) error {
	copy(q.region.Bytes()[q.cqeOff():], b)
	if !q.send(wr, q.cqeOff(), len(b)) {
		return ErrClosed
	}
	return nil
}

func (q *fakeRDMAQueue) free() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	_ = q.id.Disconnect()
	q.must(q.qp.Destroy())
	q.must(q.id.Destroy())
	q.must(q.cq.Destroy())
	q.must(q.ch.Close())
	q.must(q.mr.Dereg())
	q.must(q.pd.Dealloc())
	q.must(q.region.Unmap())
}
