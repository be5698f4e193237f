package verbstest_test

import (
	"net/netip"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
)

const (
	signaled = verbs.SendSignaled
	rights   = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite
)

// newFabric makes a network. Its machines must be empty at the end of the test.
func newFabric(t testing.TB, opt verbstest.Options) *verbstest.Fabric {
	f := verbstest.New(opt)
	t.Cleanup(func() {
		for _, h := range []string{"p", "a"} {
			testutil.Equal(t, f.Live(h), (verbstest.Counts{}), "machine %s is left with", h)
		}
		f.Close()
	})
	return f
}

func newCM(t testing.TB, f *verbstest.Fabric, host string) verbs.CM {
	c := testutil.Value(f.Provider(host).NewCM())(t)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	testutil.Must(t, err)
}

// next reads events until one of this type comes. Events of other types in between are an error.
func next(t testing.TB, c verbs.CM, want verbs.EventType) verbs.Event {
	t.Helper()
	ch := make(chan verbs.Event, 1)
	go func() {
		if ev, err := c.Next(); err == nil {
			ch <- ev
		}
	}()
	ev := testutil.Receive(t, want.String(), ch)
	testutil.MustEqual(t, ev.Type, want, "event")
	return ev
}

// end is one half of a connection.
type end struct {
	t   testing.TB
	cm  verbs.CM
	id  verbs.ID
	dev verbs.Device
	pd  verbs.PD
	cq  verbs.CQ
	qp  verbs.QP
	mr  verbs.MR
	buf []byte
}

type sizes struct {
	send, recv, cq int
	ch             verbs.CompChannel
	param          verbs.ConnParam // if zero: depths 4, unlimited retries
}

func newEnd(t testing.TB, c verbs.CM, id verbs.ID, z sizes) *end {
	t.Helper()
	e := &end{t: t, cm: c, id: id, dev: id.Device()}
	e.pd = testutil.Value(e.dev.AllocPD())(t)
	if z.cq == 0 {
		z.cq = z.send + z.recv
	}
	e.cq = testutil.Value(e.dev.CreateCQ(z.cq, z.ch, 0))(t)
	e.qp = testutil.Value(id.CreateQP(e.pd, verbs.QPInit{
		SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: z.send, MaxRecvWR: z.recv,
		MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 32,
	}))(t)
	r := testutil.Value(mem.Map("verbstest", 1<<16))(t)
	e.buf = r.Bytes()
	e.mr = testutil.Value(e.pd.RegMR(e.buf, rights))(t)
	t.Cleanup(func() {
		must(t, e.qp.Destroy())
		must(t, id.Destroy())
		must(t, e.cq.Destroy())
		must(t, e.mr.Dereg())
		must(t, e.pd.Dealloc())
		must(t, r.Unmap())
	})
	return e
}

func param(z sizes) verbs.ConnParam {
	if p := z.param; p.InitiatorDepth != 0 || p.ResponderResources != 0 || p.RNRRetryCount != 0 {
		return p
	}
	return verbs.ConnParam{ResponderResources: 4, InitiatorDepth: 4, RNRRetryCount: 7}
}

// route makes an ID of the active side up to ResolveRoute.
func route(t testing.TB, c verbs.CM, to netip.AddrPort) verbs.ID {
	t.Helper()
	id := testutil.Value(c.NewID())(t)
	must(t, id.ResolveAddr(netip.AddrPort{}, to, testutil.Patience))
	next(t, c, verbs.EventAddrResolved)
	must(t, id.ResolveRoute(testutil.Patience))
	next(t, c, verbs.EventRouteResolved)
	return id
}

func listen(t testing.TB, c verbs.CM, addr netip.AddrPort) verbs.ID {
	t.Helper()
	l := testutil.Value(c.Listen(addr, 0, 0))(t)
	t.Cleanup(func() { must(t, l.Destroy()) })
	return l
}

// connect makes a connection from machine a to machine p.
func connect(t testing.TB, f *verbstest.Fabric, zp, za sizes) (p, a *end) {
	t.Helper()
	cp, ca := newCM(t, f, "p"), newCM(t, f, "a")
	l := listen(t, cp, netip.AddrPortFrom(f.Addr("p"), 0))
	a = newEnd(t, ca, route(t, ca, l.Local()), za)
	must(t, a.id.Connect(param(za)))
	req := next(t, cp, verbs.EventConnectRequest)
	p = newEnd(t, cp, req.ID, zp)
	must(t, p.id.Accept(param(zp)))
	next(t, ca, verbs.EventEstablished)
	next(t, cp, verbs.EventEstablished)
	return p, a
}

func (e *end) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: mem.Addr(e.buf) + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
}

func (e *end) recv(id uint64, off, n int) error {
	_, err := e.qp.PostRecv([]verbs.RecvWR{{WRID: id, NumSGE: 1, SGE: [2]verbs.SGE{e.sge(off, n)}}})
	return err
}

// wr returns a work request between the starts of both buffers.
func (e *end) wr(id uint64, op verbs.SendOpcode, flags verbs.SendFlags, peer *end) verbs.SendWR {
	return verbs.SendWR{
		WRID: id, Opcode: op, Flags: flags, NumSGE: 1,
		RemoteAddr: mem.Addr(peer.buf), RKey: peer.mr.RKey(),
	}
}

// post posts work requests over the first n bytes.
func (e *end) post(n int, wrs ...verbs.SendWR) error {
	_, err := e.qp.PostSend(wrs, []verbs.SGE{e.sge(0, n)})
	return err
}

func (e *end) want(wants ...verbs.WC) {
	e.t.Helper()
	for _, want := range wants {
		wc := e.wait()
		testutil.MustTrue(e.t, wc.WRID == want.WRID && wc.Status == want.Status,
			"completion of %d with status %d, want %d with %d", wc.WRID, wc.Status, want.WRID,
			want.Status)
	}
}

func ok(id uint64) verbs.WC    { return verbs.WC{WRID: id} }
func flush(id uint64) verbs.WC { return verbs.WC{WRID: id, Status: verbs.WCWRFlushErr} }

func (e *end) wait() verbs.WC {
	e.t.Helper()
	var wc [1]verbs.WC
	testutil.Until(e.t, "a completion", func() bool {
		n := testutil.Value(e.cq.Poll(wc[:]))(e.t)
		return n == 1
	})
	return wc[0]
}

// empty checks that there is no completion now. On a synchronous fabric everything possible has
// already happened.
func (e *end) empty() {
	e.t.Helper()
	var wc [1]verbs.WC
	if n, err := e.cq.Poll(wc[:]); n != 0 || err != nil {
		e.t.Fatalf("completion %+v, %v, want none", wc[0], err)
	}
}
