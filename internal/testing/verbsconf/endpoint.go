package verbsconf

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// side is one machine of a test: its communication manager and the goroutine that reads its events.
type side struct {
	t      testing.TB
	s      *Setup
	cm     verbs.CM
	events chan verbs.Event
	end    chan error
}

func newSide(t testing.TB, s *Setup, p verbs.Provider) *side {
	t.Helper()
	c, err := p.NewCM()
	if err != nil {
		t.Fatalf("NewCM: %v", err)
	}
	x := &side{t: t, s: s, cm: c, events: make(chan verbs.Event, 64), end: make(chan error, 1)}
	go func() {
		for {
			ev, err := c.Next()
			if err != nil {
				x.end <- err
				return
			}
			x.events <- ev
		}
	}()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("CM.Close: %v", err)
			return
		}
		select {
		case err := <-x.end:
			if !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("Next after Close: %v, want ErrClosed", err)
			}
		case <-time.After(s.Timeout):
			t.Error("Next did not return after Close")
		}
	})
	return x
}

// sides returns both machines, with a listener at AddrA.
func sides(t testing.TB, s *Setup) (p, a *side, l verbs.ID) {
	t.Helper()
	p, a = newSide(t, s, s.A), newSide(t, s, s.B)
	return p, a, p.listen(s.addr())
}

// event waits for the next event and checks its type.
func (x *side) event(want verbs.EventType) verbs.Event {
	x.t.Helper()
	select {
	case ev := <-x.events:
		if ev.Type != want {
			x.t.Fatalf("event %v (status %d), want %v", ev.Type, ev.Status, want)
		}
		return ev
	case <-time.After(x.s.Timeout):
		x.t.Fatalf("no event within %v, want %v", x.s.Timeout, want)
	}
	panic("unreachable")
}

func (x *side) listen(addr netip.AddrPort) verbs.ID {
	x.t.Helper()
	l, err := x.cm.Listen(addr, 16, 0)
	if err != nil {
		x.t.Fatalf("Listen(%v): %v", addr, err)
	}
	x.t.Cleanup(func() { x.must(l.Destroy(), "destroy listener") })
	return l
}

func (x *side) must(err error, what string) {
	x.t.Helper()
	if err != nil {
		x.t.Fatalf("%s: %v", what, err)
	}
}

// route makes an ID of the active side that is ready for CreateQP and Connect.
func (x *side) route(dst netip.AddrPort) verbs.ID {
	x.t.Helper()
	id, err := x.cm.NewID()
	x.must(err, "NewID")
	x.must(id.ResolveAddr(netip.AddrPort{}, dst, x.s.Timeout), "ResolveAddr")
	if ev := x.event(verbs.EventAddrResolved); ev.ID != id {
		x.t.Fatalf("event of ID %v, want %v", ev.ID, id)
	}
	x.must(id.ResolveRoute(x.s.Timeout), "ResolveRoute")
	x.event(verbs.EventRouteResolved)
	return id
}

type sizes struct {
	send, recv, cq int
	inline         int
	// The peer of this side repeats a SEND without a receive once, not endlessly.
	rnrOnce bool
	srq     verbs.SRQ
	pd      verbs.PD // of the shared receive queue
	ch      verbs.CompChannel
}

// endpoint is one half of a connection with everything it needs: a PD, a CQ, a QP and a registered
// buffer.
type endpoint struct {
	*side
	id  verbs.ID
	dev verbs.Device
	pd  verbs.PD
	own bool // the PD is its own
	cq  verbs.CQ
	qp  verbs.QP
	reg *mem.Region
	mr  verbs.MR // all rights
	buf []byte
	wcs []verbs.WC // polled and not returned yet
}

const bufSize = 4 << 20

func (x *side) endpoint(id verbs.ID, z sizes) *endpoint {
	x.t.Helper()
	if z.send == 0 {
		z.send = 16
	}
	if z.recv == 0 {
		z.recv = 16
	}
	if z.cq == 0 {
		z.cq = z.send + z.recv
	}
	e := &endpoint{side: x, id: id, dev: id.Device(), pd: z.pd}
	var err error
	if e.pd == nil {
		e.own = true
		e.pd, err = e.dev.AllocPD()
		x.must(err, "AllocPD")
	}
	e.cq, err = e.dev.CreateCQ(z.cq, z.ch, 0)
	x.must(err, "CreateCQ")
	e.reg, err = mem.Map("verbs conformance", bufSize)
	x.must(err, "map memory")
	e.buf = e.reg.Bytes()
	e.mr, err = e.pd.RegMR(e.buf,
		verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
	x.must(err, "RegMR")
	e.qp, err = id.CreateQP(e.pd, verbs.QPInit{
		SendCQ: e.cq, RecvCQ: e.cq, SRQ: z.srq, MaxSendWR: z.send, MaxRecvWR: z.recv,
		MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: z.inline,
	})
	x.must(err, "CreateQP")
	x.t.Cleanup(e.free)
	return e
}

// free frees the endpoint, in the only order that works.
func (e *endpoint) free() {
	if e.qp == nil {
		return
	}
	e.must(e.qp.Destroy(), "destroy QP")
	e.qp = nil
	e.must(e.id.Destroy(), "destroy ID")
	e.must(e.cq.Destroy(), "destroy CQ")
	e.must(e.mr.Dereg(), "deregister")
	if e.own {
		e.must(e.pd.Dealloc(), "free PD")
	}
	e.must(e.reg.Unmap(), "unmap")
}

// params returns connection parameters that every device accepts.
func params(private string) verbs.ConnParam {
	return verbs.ConnParam{
		PrivateData: []byte(private), ResponderResources: 4, InitiatorDepth: 4,
		RetryCount: 7, RNRRetryCount: 7,
	}
}

// pair is a connection: p is the passive half on A, a the active half on B.
type pair struct{ p, a *endpoint }

// connect makes a pair. The active side has sent one message, as the iWARP standard requires (RFC
// 5044, 7.1).
func connect(t *testing.T, s *Setup, zp, za sizes) *pair {
	t.Helper()
	sp, sa, l := sides(t, s)
	return connectTo(t, sp, sa, l, zp, za)
}

func connectTo(t *testing.T, sp, sa *side, l verbs.ID, zp, za sizes) *pair {
	t.Helper()
	id := sa.route(netip.AddrPortFrom(sp.s.AddrA, l.Local().Port()))
	x := &pair{a: sa.endpoint(id, za)}
	request, reply := params("request"), params("reply")
	if za.rnrOnce {
		request.RNRRetryCount = 1
	}
	if zp.rnrOnce {
		reply.RNRRetryCount = 1
	}
	sa.must(id.Connect(request), "Connect")
	req := sp.event(verbs.EventConnectRequest)
	x.p = sp.endpoint(req.ID, zp)
	if zp.srq != nil {
		if n, err := zp.srq.PostRecv([]verbs.RecvWR{x.p.recvWR(helloID, 0, 64)}); n != 1 ||
			err != nil {
			t.Fatalf("SRQ.PostRecv: %d, %v", n, err)
		}
	} else {
		x.p.postRecv(x.p.recvWR(helloID, 0, 64))
	}
	sp.must(req.ID.Accept(reply), "Accept")
	sa.event(verbs.EventEstablished)
	sp.event(verbs.EventEstablished)
	x.a.send(helloID, 0, 1)
	x.a.success(helloID, verbs.WCSend)
	x.p.success(helloID, verbs.WCRecv)
	return x
}

const helloID = 0xfedcba9876543210

func (e *endpoint) addr(off int) uint64 { return mem.Addr(e.buf) + uint64(off) }

func (e *endpoint) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: e.addr(off), Length: uint32(n), LKey: e.mr.LKey()}
}

func (e *endpoint) recvWR(id uint64, off, n int) verbs.RecvWR {
	return verbs.RecvWR{WRID: id, NumSGE: 1, SGE: [2]verbs.SGE{e.sge(off, n)}}
}

func (e *endpoint) postRecv(wrs ...verbs.RecvWR) {
	e.t.Helper()
	if n, err := e.qp.PostRecv(wrs); n != len(wrs) || err != nil {
		e.t.Fatalf("PostRecv: %d of %d posted: %v", n, len(wrs), err)
	}
}

func (e *endpoint) postSend(wr verbs.SendWR, sges ...verbs.SGE) {
	e.t.Helper()
	if n, err := e.qp.PostSend([]verbs.SendWR{wr}, sges); n != 1 || err != nil {
		e.t.Fatalf("PostSend: %d posted: %v", n, err)
	}
}

// send posts a signaled SEND of n bytes at an offset.
func (e *endpoint) send(id uint64, off, n int) {
	e.t.Helper()
	e.postSend(verbs.SendWR{WRID: id, Opcode: verbs.WRSend, Flags: signaled, NumSGE: 1},
		e.sge(off, n))
}

// rdma posts a signaled RDMA READ or WRITE of n bytes at an offset.
func (e *endpoint) rdma(id uint64, op verbs.SendOpcode, off, n int, addr uint64, key uint32) {
	e.t.Helper()
	e.postSend(verbs.SendWR{
		WRID: id, Opcode: op, Flags: signaled, NumSGE: 1, RemoteAddr: addr, RKey: key,
	}, e.sge(off, n))
}

func (e *endpoint) next() verbs.WC {
	e.t.Helper()
	wc, ok := e.poll(e.s.Timeout)
	if !ok {
		e.t.Fatalf("no completion within %v", e.s.Timeout)
	}
	return wc
}

// find waits for the completion of one work request. It keeps other completions for later calls,
// since their order is up to the device.
func (e *endpoint) find(id uint64) verbs.WC {
	e.t.Helper()
	var others []verbs.WC
	defer func() { e.wcs = append(others, e.wcs...) }()
	for {
		wc := e.next()
		if wc.WRID == id {
			return wc
		}
		others = append(others, wc)
	}
}

func (e *endpoint) poll(limit time.Duration) (verbs.WC, bool) {
	e.t.Helper()
	for end := time.Now().Add(limit); len(e.wcs) == 0; {
		batch := make([]verbs.WC, 8)
		n, err := e.cq.Poll(batch)
		if err != nil {
			e.t.Fatalf("Poll: %v", err)
		}
		e.wcs = batch[:n]
		if n == 0 {
			if time.Now().After(end) {
				return verbs.WC{}, false
			}
			time.Sleep(20 * time.Microsecond) // the device works in that time
		}
	}
	wc := e.wcs[0]
	e.wcs = e.wcs[1:]
	return wc, true
}

// idle checks that there are no further completions.
func (e *endpoint) idle(what string) {
	e.t.Helper()
	if wc, ok := e.poll(5 * time.Millisecond); ok {
		e.t.Fatalf("%s: unexpected completion %+v", what, wc)
	}
}

// success waits for one good completion.
func (e *endpoint) success(id uint64, op verbs.WCOpcode) verbs.WC {
	e.t.Helper()
	wc := e.next()
	if wc.WRID != id || wc.Status != verbs.WCSuccess || wc.Opcode != op || wc.QPNum != e.qp.Num() {
		e.t.Fatalf("completion %+v, want success of %#x, opcode %d, queue pair %d", wc, id, op,
			e.qp.Num())
	}
	return wc
}

// failure waits for one failed completion with one of the statuses, any if none is given.
func (e *endpoint) failure(id uint64, statuses ...verbs.WCStatus) verbs.WC {
	e.t.Helper()
	wc := e.next()
	ok := len(statuses) == 0 && wc.Status != verbs.WCSuccess
	for _, s := range statuses {
		ok = ok || wc.Status == s
	}
	if wc.WRID != id || !ok || wc.QPNum != e.qp.Num() {
		e.t.Fatalf("completion %+v, want an error %v of %#x", wc, statuses, id)
	}
	return wc
}

func (e *endpoint) iwarp() bool { return e.dev.Attr().IWARP }

// fill writes a pattern.
func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i)*7 + byte(i>>8) + seed
	}
}

func (e *endpoint) checkFill(off, n int, seed byte, what string) {
	e.t.Helper()
	for i := range n {
		if want := byte(i)*7 + byte(i>>8) + seed; e.buf[off+i] != want {
			e.t.Fatalf("%s: byte %d is %#x, want %#x", what, i, e.buf[off+i], want)
		}
	}
}

func (p *pair) each(fn func(e *endpoint)) { fn(p.p); fn(p.a) }
