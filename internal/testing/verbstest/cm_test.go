package verbstest_test

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
)

func listenAt(f *verbstest.Fabric, host string) netip.AddrPort {
	return netip.AddrPortFrom(f.Addrs(host)[len(f.Addrs(host))-1], 0)
}

// half makes the halves of a connection up to the request. p has read it.
func half(t *testing.T, f *verbstest.Fabric) (p, a *end) {
	t.Helper()
	cp, ca := newCM(t, f, "p"), newCM(t, f, "a")
	a = newEnd(t, ca, route(t, ca, listen(t, cp, listenAt(f, "p")).Local()),
		sizes{send: 1, recv: 1})
	must(t, a.id.Connect(verbs.ConnParam{}))
	return newEnd(t, cp, next(t, cp, verbs.EventConnectRequest).ID, sizes{send: 1, recv: 1}), a
}

func TestPrivateDataLimits(t *testing.T) {
	for _, iwarp := range []bool{false, true} {
		f := newFabric(t, verbstest.Options{IWARP: iwarp})
		cp, ca := newCM(t, f, "p"), newCM(t, f, "a")
		a := newEnd(t, ca, route(t, ca, listen(t, cp, listenAt(f, "p")).Local()),
			sizes{send: 1, recv: 1})
		limit := map[bool]int{false: 56, true: 255}[iwarp]
		wantErr(t, a.id.Connect(verbs.ConnParam{PrivateData: make([]byte, limit+1)}), unix.EINVAL,
			"too much private data")
		wantErr(t, a.id.Connect(verbs.ConnParam{InitiatorDepth: 17}), unix.EINVAL, "too many READs")
		must(t, a.id.Connect(verbs.ConnParam{PrivateData: make([]byte, limit)}))
		req := next(t, cp, verbs.EventConnectRequest)
		testutil.MustEqual(t, len(req.Param.PrivateData), limit, "bytes of private data")
		wantErr(t, req.ID.Accept(verbs.ConnParam{}), unix.EINVAL, "accept without a queue pair")
		must(t, req.ID.Reject(make([]byte, 148)))
		wantErr(t, req.ID.Reject(nil), unix.EINVAL, "second rejection")
		must(t, req.ID.Destroy())
		next(t, ca, verbs.EventRejected)
	}
}

// TestDepthTooLarge: the passive side announces more READs than the other device serves.
func TestDepthTooLarge(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	small := verbstest.RoCE("small", netip.MustParseAddr("10.0.0.2"))
	small.Attr.MaxQPInitRdAtom, small.Attr.MaxQPRdAtom = 2, 2
	f.AddHost("a", small)
	cp, ca := newCM(t, f, "p"), newCM(t, f, "a")
	a := newEnd(t, ca, route(t, ca, listen(t, cp, netip.AddrPortFrom(f.Addr("p"), 0)).Local()),
		sizes{send: 1, recv: 1})
	must(t, a.recv(1, 0, 8))
	must(t, a.id.Connect(verbs.ConnParam{}))
	p := newEnd(t, cp, next(t, cp, verbs.EventConnectRequest).ID, sizes{send: 1, recv: 1})
	must(t, p.id.Accept(verbs.ConnParam{InitiatorDepth: 3}))
	next(t, ca, verbs.EventConnectError)
	a.want(flush(1))
}

func TestHosts(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	f.AddHost("bare")
	testutil.Is(t, testutil.Err(f.Provider("bare").NewCM()), verbs.ErrNoDevice,
		"machine without devices")
	f.AddHost("both", verbstest.RoCE("r", netip.MustParseAddr("10.1.0.1")),
		verbstest.IWARP("i", netip.MustParseAddr("10.1.0.2")))
	f.AddHost("i", verbstest.IWARP("i", netip.MustParseAddr("10.1.0.3")))
	c, ci := newCM(t, f, "both"), newCM(t, f, "i")
	l := listen(t, c, netip.MustParseAddrPort("0.0.0.0:4420"))
	testutil.True(t, l.Device() == nil, "a wildcard listener has a device")
	id := testutil.Value(ci.NewID())(t)
	defer func() { must(t, id.Destroy()) }()
	must(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("10.9.9.9:1"), time.Second))
	ev := next(t, ci, verbs.EventAddrError)
	testutil.True(t, ev.Status == -int(unix.EHOSTUNREACH), "unknown address: status %d", ev.Status)
	// iWARP to iWARP works; iWARP does not reach RoCE.
	a := newEnd(t, ci, route(t, ci, netip.MustParseAddrPort("10.1.0.2:4420")),
		sizes{send: 1, recv: 1})
	must(t, a.id.Connect(verbs.ConnParam{}))
	req := next(t, c, verbs.EventConnectRequest)
	testutil.Equal(t, req.ID.Device().Attr().Name, "i", "the request came in on the wrong device")
	must(t, req.ID.Destroy())
	next(t, ci, verbs.EventRejected)
	wantErr(t, testutil.Err(c.Listen(netip.MustParseAddrPort("10.1.0.1:4420"), 1, 0)),
		unix.EADDRINUSE, "a listener beside the wildcard")
}

// TestLostMessages: a side whose DREQ or REQ is lost waits until its timeout. The other side does
// not hear of it.
func TestLostMessages(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	p, a := connect(t, f, sizes{send: 1, recv: 1}, sizes{send: 1, recv: 1})
	f.DropMessages("a", verbstest.MessageDREQ, 1)
	must(t, a.id.Disconnect())
	f.ExpireCM()
	testutil.Equal(t, next(t, a.cm, verbs.EventDisconnected).Status, -int(unix.ETIMEDOUT),
		"status without an answer")

	f.DropMessages("a", verbstest.MessageREQ, 1)
	ca, to := newCM(t, f, "a"), listen(t, p.cm, listenAt(f, "p")).Local()
	for _, private := range []byte{1, 2} {
		e := newEnd(t, ca, route(t, ca, to), sizes{send: 1, recv: 1})
		must(t, e.id.Connect(verbs.ConnParam{PrivateData: []byte{private}}))
		if private == 1 {
			f.ExpireCM()
			next(t, ca, verbs.EventUnreachable)
		}
	}
	req := next(t, p.cm, verbs.EventConnectRequest)
	testutil.Equal(t, req.Param.PrivateData[0], 2, "the first request that has arrived")
	must(t, req.ID.Destroy())
	next(t, ca, verbs.EventRejected)
	must(t, p.id.Disconnect())
	testutil.Equal(t, next(t, p.cm, verbs.EventDisconnected).Status, 0, "status with an answer")
}

// TestEarlyData: the active side may send before the passive side has read Established.
func TestEarlyData(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	p, a := half(t, f)
	must(t, p.recv(1, 0, 8))
	must(t, a.recv(2, 0, 8))
	testutil.Is(t, p.post(8, p.wr(3, verbs.WRSend, signaled, a)), unix.EINVAL,
		"post before the connection")
	must(t, p.id.Accept(verbs.ConnParam{RNRRetryCount: 7}))
	must(t, p.post(8, p.wr(3, verbs.WRSend, signaled, a)))
	p.empty() // the active side has not read the reply
	next(t, a.cm, verbs.EventEstablished)
	p.want(ok(3))
	a.want(ok(2))
	must(t, a.post(8, a.wr(4, verbs.WRSend, signaled, p)))
	p.want(ok(1))
	next(t, p.cm, verbs.EventEstablished)
}

func TestBacklog(t *testing.T) {
	f := newFabric(t, verbstest.Options{})
	cp, ca := newCM(t, f, "p"), newCM(t, f, "a")
	l := testutil.Value(cp.Listen(listenAt(f, "p"), 2, 0))(t)
	var ends []*end
	for range 3 {
		e := newEnd(t, ca, route(t, ca, l.Local()), sizes{send: 1, recv: 1})
		ends = append(ends, e)
	}
	for _, e := range ends {
		must(t, e.id.Connect(verbs.ConnParam{}))
	}
	testutil.MustTrue(t, next(t, ca, verbs.EventRejected).ID == ends[2].id,
		"rejected the wrong request")
	must(t, next(t, cp, verbs.EventConnectRequest).ID.Destroy())
	next(t, ca, verbs.EventRejected)
	must(t, l.Destroy()) // including the unread request
	next(t, ca, verbs.EventRejected)
}
