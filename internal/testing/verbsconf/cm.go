package verbsconf

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func testDevices(t *testing.T, s *Setup) {
	list, err := s.A.Devices()
	if err != nil || len(list) == 0 {
		t.Fatalf("Devices: %d devices, %v", len(list), err)
	}
	names := map[string]bool{}
	for _, d := range list {
		if d.Name == "" || names[d.Name] {
			t.Errorf("device name %q is empty or twice", d.Name)
		}
		names[d.Name] = true
		if d.MaxQP < 1 || d.MaxQPWR < 1 || d.MaxSGE < 1 || d.MaxSGERD < 1 || d.MaxCQ < 1 ||
			d.MaxCQE < 1 || d.MaxMR < 1 || d.MaxMRSize == 0 || d.MaxQPRdAtom < 1 ||
			d.MaxQPInitRdAtom < 1 || d.NumCompVectors < 1 {
			t.Errorf("implausible attributes: %+v", d)
		}
	}
}

func testCloseWhileNext(t *testing.T, s *Setup) {
	newSide(t, s, s.A) // its goroutine is in Next, and its clean-up checks that Close ends it
	c := testutil.Value(s.A.NewCM())(t)
	testutil.Must(t, c.Close())
	if _, err := c.Next(); !errors.Is(err, verbs.ErrClosed) {
		t.Fatalf("Next after Close: %v, want ErrClosed", err)
	}
}

func testListen(t *testing.T, s *Setup) {
	x := newSide(t, s, s.A)
	// RFC 5737, RFC 3849: these addresses are not in use.
	for _, a := range []string{"203.0.113.1", "2001:db8:ffff::1"} {
		if l, err := x.cm.Listen(netip.AddrPortFrom(netip.MustParseAddr(a), 4420), 1,
			0); !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("Listen at foreign address %s: %v, %v, want ErrNoDevice", a, l, err)
		}
	}
	l := x.listen(s.addr())
	if l.Local().Addr().WithZone("") != s.AddrA.WithZone("") || l.Local().Port() == 0 {
		t.Fatalf("listener at %v, want a port of %v", l.Local(), s.AddrA)
	}
	testutil.MustTrue(t, l.Device() != nil && l.Device().Attr().Name != "",
		"listener at an address of a device has no device")
	l2 := x.listen(s.addr())
	testutil.MustTrue(t, l2.Local().Port() != l.Local().Port(), "two listeners got the same port")
	testutil.MustTrue(t, l2.Device() == l.Device(),
		"two IDs on one device have different Device values")
	if l, err := x.cm.Listen(l.Local(), 1, 0); !errors.Is(err, unix.EADDRINUSE) {
		t.Fatalf("second listener at %v: %v, %v, want EADDRINUSE", l.Local(), l, err)
	}
}

func testListenWildcard(t *testing.T, s *Setup) {
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if s.AddrA.Is6() && any.Is4() {
			continue
		}
		t.Run(any.String(), func(t *testing.T) {
			sp, sa := newSide(t, s, s.A), newSide(t, s, s.B)
			l := sp.listen(netip.AddrPortFrom(any, 0))
			if l.Local().Port() == 0 || l.Device() != nil {
				t.Fatalf("wildcard listener: at %v, device %v", l.Local(), l.Device())
			}
			for _, at := range []netip.Addr{any, s.AddrA} {
				if l, err := sp.cm.Listen(netip.AddrPortFrom(at, l.Local().Port()), 1,
					0); !errors.Is(err, unix.EADDRINUSE) {
					t.Fatalf("second listener at the port, at %v: %v, %v, want EADDRINUSE", at, l,
						err)
				}
			}
			p := connectTo(t, sp, sa, l, sizes{}, sizes{}) // the request names the device
			if got := p.p.id.Local().Addr().Unmap().WithZone(""); got != s.AddrA.WithZone("") {
				t.Fatalf("connection came in at %v, want %v", got, s.AddrA)
			}
		})
	}
}

func testConnect(t *testing.T, s *Setup) {
	sp, sa, l := sides(t, s)
	l.SetContext("listener")
	a := sa.endpoint(sa.route(l.Local()), sizes{})
	a.id.SetContext("active")
	cp := verbs.ConnParam{
		PrivateData: bytes.Repeat([]byte("q"), 56), ResponderResources: 3, InitiatorDepth: 2,
		RetryCount: 7, RNRRetryCount: 6,
	}
	a.must(a.id.Connect(cp), "Connect")

	req := sp.event(verbs.EventConnectRequest)
	if req.Listener != l || req.Listener.Context() != "listener" || req.ID == l || req.ID == nil {
		t.Fatalf("request at listener %v with ID %v", req.Listener, req.ID)
	}
	checkPrivate(t, "request", req.Param.PrivateData, cp.PrivateData, 56, a.iwarp())
	if req.Param.InitiatorDepth != 3 || req.Param.ResponderResources != 2 {
		t.Fatalf("depths in the request: %+v; want initiator depth 3, responder resources 2, "+
			"as seen from the passive side", req.Param)
	}
	p := sp.endpoint(req.ID, sizes{})
	reply := verbs.ConnParam{
		PrivateData: []byte("reply"), ResponderResources: 2, InitiatorDepth: 3,
		RNRRetryCount: 7,
	}
	p.must(req.ID.Accept(reply), "Accept")
	est := sa.event(verbs.EventEstablished)
	testutil.MustTrue(t, est.ID == a.id && est.ID.Context() == "active",
		"Established of another ID")
	checkPrivate(t, "reply", est.Param.PrivateData, reply.PrivateData, 196, a.iwarp())
	ev := sp.event(verbs.EventEstablished)
	testutil.MustTrue(t, ev.ID == p.id, "Established of another ID at the passive side")
	// The request does not carry the zone of a link-local address.
	if at := zoneless(p.id.Local()); at != zoneless(a.id.Remote()) || at != zoneless(l.Local()) {
		t.Fatalf("connection goes to %v, came in at %v, listener at %v", a.id.Remote(),
			p.id.Local(), l.Local())
	}
	if zoneless(p.id.Remote()).Addr() != zoneless(a.id.Local()).Addr() {
		t.Fatalf("connection comes from %v, peer says %v", p.id.Remote(), a.id.Local())
	}
	testutil.MustTrue(t, p.id.Device() == l.Device(),
		"connection and listener at one address have different devices")
}

func zoneless(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().WithZone(""), a.Port())
}

// checkPrivate compares private data with the bytes that were sent: RoCE pads it with zeroes, iWARP
// does not.
func checkPrivate(t *testing.T, what string, got, want []byte, size int, iwarp bool) {
	t.Helper()
	if iwarp {
		size = len(want)
	}
	if len(got) != size || !bytes.Equal(got[:len(want)], want) ||
		len(bytes.TrimRight(got[len(want):], "\x00")) > 0 {
		t.Fatalf("private data of the %s: %d bytes %q, want %q padded to %d", what, len(got), got,
			want, size)
	}
}

func testConnectRefused(t *testing.T, s *Setup) {
	sp, sa := newSide(t, s, s.A), newSide(t, s, s.B)
	l, err := sp.cm.Listen(s.addr(), 1, 0)
	sp.must(err, "Listen")
	to := l.Local()
	sp.must(l.Destroy(), "destroy listener")
	a := sa.endpoint(sa.route(to), sizes{})
	if err := a.id.Connect(params("")); errors.Is(err, unix.ECONNREFUSED) {
		return // a software iWARP device connects at once
	} else if err != nil {
		t.Fatalf("Connect: %v", err)
	}
	ev := sa.event(verbs.EventRejected)
	testutil.MustTrue(t, ev.Status != 0, "rejected without a reason")
}

func testReject(t *testing.T, s *Setup) {
	sp, sa, l := sides(t, s)
	a := sa.endpoint(sa.route(l.Local()), sizes{})
	a.postRecv(a.recvWR(5, 0, 64))
	a.must(a.id.Connect(params("")), "Connect")
	req := sp.event(verbs.EventConnectRequest)
	sp.must(req.ID.Reject([]byte("\x00\x00\x06\x00")), "Reject")
	sp.must(req.ID.Destroy(), "destroy rejected ID")
	ev := sa.event(verbs.EventRejected)
	testutil.MustTrue(t, ev.Status != 0, "rejected without a reason")
	checkPrivate(t, "rejection", ev.Param.PrivateData, []byte("\x00\x00\x06\x00"), 148, a.iwarp())
	a.must(a.qp.ToError(), "ToError") // if the CM did not do it
	a.failure(5, verbs.WCWRFlushErr)
}

// siwTimeout is the time that soft iWARP waits for the reply to a request
// (drivers/infiniband/sw/siw/siw_cm.h, MPAREQ_TIMEOUT).
const siwTimeout = 10 * time.Second

// testListenerClosed destroys the listener while an unread request waits. Linux ignores an iWARP
// request that comes from the driver at the moment of the destruction (cm_conn_req_handler of
// drivers/infiniband/core/iwcm.c), so its host waits for a reply.
func testListenerClosed(t *testing.T, s *Setup) {
	sa := newSide(t, s, s.B)
	c := testutil.Value(s.A.NewCM())(t)
	l := testutil.Value(c.Listen(s.addr(), 4, 0))(t)
	a := sa.endpoint(sa.route(l.Local()), sizes{})
	a.must(a.id.Connect(params("")), "Connect")
	a.must(l.Destroy(), "destroy listener")
	a.must(c.Close(), "close CM")
	if !a.iwarp() {
		sa.event(verbs.EventRejected)
		return
	}
	select {
	case ev := <-sa.events:
		if ev.Type != verbs.EventRejected && ev.Type != verbs.EventUnreachable {
			t.Fatalf("event %v (status %d), want %v or %v", ev.Type, ev.Status, verbs.EventRejected,
				verbs.EventUnreachable)
		}
	case <-time.After(siwTimeout + s.Timeout):
		t.Fatalf("the host heard nothing within %v", siwTimeout+s.Timeout)
	}
}

// testDestroyUnread destroys an ID with unread events.
func testDestroyUnread(t *testing.T, s *Setup) {
	sp := newSide(t, s, s.A)
	l := sp.listen(s.addr())
	c, err := s.B.NewCM()
	testutil.Must(t, err)
	id, err := c.NewID()
	sp.must(err, "NewID")
	sp.must(id.ResolveAddr(netip.AddrPort{}, l.Local(), s.Timeout), "ResolveAddr")
	sp.must(id.Destroy(), "destroy ID")
	sp.must(c.Close(), "close CM")
}

func testDisconnect(t *testing.T, s *Setup) {
	p := connect(t, s, sizes{}, sizes{})
	p.each(func(e *endpoint) {
		for i := range 4 {
			e.postRecv(e.recvWR(uint64(i), 64*i, 64))
		}
	})
	p.a.must(p.a.id.Disconnect(), "Disconnect")
	ev := p.p.event(verbs.EventDisconnected)
	testutil.MustTrue(t, ev.ID == p.p.id, "Disconnected of another ID")
	p.p.must(p.p.id.Disconnect(), "Disconnect of the other side")
	p.a.event(verbs.EventDisconnected)
	p.each(func(e *endpoint) {
		for i := range 4 {
			e.failure(uint64(i), verbs.WCWRFlushErr)
		}
		e.must(e.id.Disconnect(), "second Disconnect")
	})
}

// testDestroyConnected frees one half without disconnecting.
func testDestroyConnected(t *testing.T, s *Setup) {
	p := connect(t, s, sizes{}, sizes{})
	p.a.free()
	p.p.event(verbs.EventDisconnected)
	p.p.must(p.p.id.Disconnect(), "Disconnect of the other side")
}

// testDestroyFails: failure to destroy a queue pair is reported. The queue pair is destroyed at the
// end, which libsiw cannot do after an error: it would unmap its queues again.
func testDestroyFails(t *testing.T, s *Setup) {
	p := connect(t, s, sizes{}, sizes{})
	if p.p.dev.Attr().VendorID == verbs.VendorSIW {
		t.Skip("libsiw frees the queues before the kernel command, and would free them again")
	}
	restore := s.FailDestroy(p.p.qp)
	err := p.p.qp.Destroy()
	restore()
	if err == nil {
		p.p.qp = nil
		t.Fatal("the error was not reported")
	}
}

// testMany has several connections on one channel at once.
func testMany(t *testing.T, s *Setup) {
	sp, sa, l := sides(t, s)
	var pairs []*pair
	for range 8 {
		pairs = append(pairs, connectTo(t, sp, sa, l, sizes{}, sizes{}))
	}
	for i, p := range pairs {
		fill(p.a.buf[:512], byte(i))
		p.p.postRecv(p.p.recvWR(uint64(i), 0, 512))
	}
	for i, p := range pairs {
		p.a.send(uint64(i), 0, 512)
	}
	for i, p := range pairs {
		p.a.success(uint64(i), verbs.WCSend)
		p.p.success(uint64(i), verbs.WCRecv)
		p.p.checkFill(0, 512, byte(i), "message")
		testutil.MustTrue(t, p.a.dev == pairs[0].a.dev,
			"connections on one device have different Device values")
	}
}

// testManyCQs makes hundreds of completion queues. Soft iWARP's library fails at the 145th.
func testManyCQs(t *testing.T, s *Setup) {
	_, sa, l := sides(t, s)
	id := sa.route(l.Local())
	t.Cleanup(func() { sa.must(id.Destroy(), "destroy ID") })
	for i := range 300 {
		cq, err := id.Device().CreateCQ(1, nil, 0)
		if err != nil {
			t.Fatalf("CQ %d: %v", i, err)
		}
		t.Cleanup(func() { sa.must(cq.Destroy(), "destroy CQ") })
	}
}
