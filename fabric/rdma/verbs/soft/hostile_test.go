package soft

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// setup is the time for a request or an RTR: short, but enough for one that comes, also on a busy
// machine.
const setup = 3 * time.Second

// An iwarpHost is a provider for iWARP with a listener and a program that answers requests.
type iwarpHost struct {
	t  *testing.T
	p  *Provider
	cm verbs.CM
	l  verbs.ID
	pd verbs.PD
	cq verbs.CQ
}

func newIWARPHost(t *testing.T, o mpa.Options) *iwarpHost {
	h := &iwarpHost{t: t, p: New(Options{IWARP: true, Background: true, MPA: o})}
	h.cm = testutil.Value(h.p.NewCM())(t)
	h.l = testutil.Value(h.cm.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 16, 0))(t)
	h.pd = testutil.Value(h.l.Device().AllocPD())(t)
	h.cq = testutil.Value(h.l.Device().CreateCQ(64, nil, 0))(t)
	t.Cleanup(func() {
		for _, end := range []func() error{
			h.l.Destroy, h.cq.Destroy, h.pd.Dealloc, h.cm.Close, h.p.Close,
		} {
			testutil.Check(t, end())
		}
	})
	return h
}

func (h *iwarpHost) event(want verbs.EventType) verbs.Event {
	h.t.Helper()
	ev := testutil.Value(h.cm.Next())(h.t)
	testutil.MustEqual(h.t, ev.Type, want, "event")
	return ev
}

func (h *iwarpHost) qp(id verbs.ID) verbs.QP {
	return testutil.Value(id.CreateQP(h.pd, verbs.QPInit{
		SendCQ: h.cq, RecvCQ: h.cq, MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1,
	}))(h.t)
}

// neighbour makes a connection and ends it.
func (h *iwarpHost) neighbour() {
	h.t.Helper()
	a := testutil.Value(h.cm.NewID())(h.t)
	testutil.Must(h.t, a.ResolveAddr(netip.AddrPort{}, h.l.Local(), 0))
	h.event(verbs.EventAddrResolved)
	testutil.Must(h.t, a.ResolveRoute(0))
	h.event(verbs.EventRouteResolved)
	qa := h.qp(a)
	testutil.Must(h.t, a.Connect(verbs.ConnParam{}))
	p := h.event(verbs.EventConnectRequest).ID
	qp := h.qp(p)
	testutil.Must(h.t, p.Accept(verbs.ConnParam{}))
	h.event(verbs.EventEstablished)
	h.event(verbs.EventEstablished)
	testutil.Must(h.t, a.Disconnect())
	h.event(verbs.EventDisconnected)
	h.event(verbs.EventDisconnected)
	for _, end := range []func() error{qa.Destroy, qp.Destroy, a.Destroy, p.Destroy} {
		testutil.Must(h.t, end())
	}
}

func (h *iwarpHost) dial() net.Conn {
	c := testutil.Value(net.Dial("tcp", h.l.Local().String()))(h.t)
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// answer reads until the host closes the connection.
func answer(c net.Conn) string {
	b, _ := io.ReadAll(c) // it may be reset
	return string(b)
}

// TestHostileSetup begins connections badly. They end by themselves, no program hears of them, and
// others connect.
func TestHostileSetup(t *testing.T) {
	t.Parallel() // it mostly waits
	const request = "MPA ID Req Frame"
	cases := []struct{ name, bytes, want string }{
		{"nothing", "", ""},
		{"a part", request[:7], ""},
		{"a part of the private data", request + "\x00\x01\x00\x20abc", ""},
		{"private length of 65,535", request + "\x00\x01\xff\xff", ""},
		{"another protocol", strings.Repeat("GET / HTTP/1.1\r\n", 9), ""},
		{"a reply", "MPA ID Rep Frame\x00\x01\x00\x00", ""},
		{"markers", request + "\x80\x01\x00\x00", "MPA ID Rep Frame\x20\x01\x00\x00"},
		{"no depths", request + "\x10\x02\x00\x00", ""},
	}
	h := newIWARPHost(t, mpa.Options{SetupTime: setup})
	peers := make([]net.Conn, len(cases))
	for i, c := range cases {
		peers[i] = h.dial()
		_, err := io.WriteString(peers[i], c.bytes)
		testutil.Must(t, err)
	}
	for i, c := range cases {
		testutil.Equal(t, answer(peers[i]), c.want, "answer to %s", c.name)
	}
	h.neighbour()
}

// TestSlowSetup has as many connections without a request as a host may have: the next is closed.
// Other hosts are not concerned.
func TestSlowSetup(t *testing.T) {
	h := newIWARPHost(t, mpa.Options{SetupTime: time.Hour})
	const most = 128
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
	for range most {
		c := testutil.Value(d.Dial("tcp", h.l.Local().String()))(t)
		defer c.Close()
	}
	c := testutil.Value(d.Dial("tcp", h.l.Local().String()))(t)
	defer c.Close()
	testutil.Equal(t, answer(c), "", "answer to one more")
	h.neighbour()
}

// TestStalledPeer accepts a peer that never sends its RTR.
func TestStalledPeer(t *testing.T) {
	t.Parallel() // it mostly waits
	h := newIWARPHost(t, mpa.Options{SetupTime: setup})
	peer := h.dial()
	_, err := io.WriteString(peer, "MPA ID Req Frame\x10\x02\x00\x04\x80\x04\xc0\x04")
	testutil.Must(t, err)
	id := h.event(verbs.EventConnectRequest).ID
	qp := h.qp(id)
	testutil.Must(t, id.Accept(verbs.ConnParam{ResponderResources: 4, InitiatorDepth: 4}))
	testutil.Equal(t, answer(peer), "MPA ID Rep Frame\x10\x02\x00\x04\x80\x04\x80\x04",
		"reply, and the end without an RTR")
	h.event(verbs.EventConnectError)
	testutil.Must(t, qp.Destroy())
	testutil.Must(t, id.Destroy())
	h.neighbour()
}

// TestDeafPeer accepts a peer that asks for more data than the sockets hold, and does not receive
// it: the connection ends after SendTime.
func TestDeafPeer(t *testing.T) {
	t.Parallel() // it mostly waits
	h := newIWARPHost(t, mpa.Options{SendTime: setup})
	const size = 64 << 20
	memory := testutil.Value(mem.Map("test", size))(t)
	defer func() { testutil.Check(t, memory.Unmap()) }()
	m := testutil.Value(h.pd.RegMR(memory.Bytes(), verbs.AccessRemoteRead))(t)
	defer func() { testutil.Check(t, m.Dereg()) }()
	peer := h.dial()
	_, err := io.WriteString(peer, "MPA ID Req Frame\x18\x02\x00\x04\x00\x04\x00\x04")
	testutil.Must(t, err)
	id := h.event(verbs.EventConnectRequest).ID
	qp := h.qp(id)
	testutil.Must(t, id.Accept(verbs.ConnParam{ResponderResources: 4, InitiatorDepth: 4}))
	h.event(verbs.EventEstablished)
	request := []byte("\x00\x2e\x41\x41\x00\x00\x00\x00") // a READ request, the first one
	request = append(request, "\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00"...)
	request = append(request, make([]byte, 12)...) // the sink
	request = binary.BigEndian.AppendUint32(request, size)
	request = binary.BigEndian.AppendUint32(request, m.RKey())
	request = binary.BigEndian.AppendUint64(request, mem.Addr(memory.Bytes()))
	_, err = peer.Write(append(request, 0, 0, 0, 0))
	testutil.Must(t, err)
	h.event(verbs.EventDisconnected)
	testutil.Must(t, qp.Destroy())
	testutil.Must(t, id.Destroy())
	h.neighbour()
}

// counter returns a counter of the host.
func (h *iwarpHost) counter(name string) (n uint64) {
	for _, c := range h.p.Counters() {
		if c.Counter == name {
			n = c.Value
		}
	}
	return n
}

// TestSetupEnds ends connections before they are established, in every way, and in each more often
// than a host may have such connections. They leave nothing: the next ones are served, and testutil
// looks for sockets and goroutines.
func TestSetupEnds(t *testing.T) {
	const most = 128 // of a host
	h := newIWARPHost(t, mpa.Options{})
	dial := func(to verbs.ID, bytes string) *net.TCPConn {
		c := testutil.Value(net.Dial("tcp", to.Local().String()))(t).(*net.TCPConn)
		testutil.Value(io.WriteString(c, bytes))(t)
		return c
	}
	const request = "MPA ID Req Frame\x10\x02\x00\x04\x80\x04\xc0\x04" // with RTR
	accept := func(c *net.TCPConn, id verbs.ID, end func() error) error {
		qp := h.qp(id)
		if err := id.Accept(verbs.ConnParam{ResponderResources: 1}); err != nil {
			return err
		}
		testutil.Must(t, end())
		h.event(verbs.EventConnectError)
		answer(c)
		return qp.Destroy()
	}
	for _, end := range []func(c *net.TCPConn, id verbs.ID) error{
		func(_ *net.TCPConn, id verbs.ID) error { return id.Reject(nil) },
		func(c *net.TCPConn, _ verbs.ID) error { return c.Close() },
		func(c *net.TCPConn, _ verbs.ID) error { return c.CloseWrite() },
		func(_ *net.TCPConn, id verbs.ID) error {
			testutil.Is(t, id.Accept(verbs.ConnParam{}), unix.EINVAL, "accept without a queue pair")
			return nil
		},
		func(_ *net.TCPConn, id verbs.ID) error {
			qp := h.qp(id)
			testutil.Must(t, qp.ToError())
			testutil.Is(t, id.Accept(verbs.ConnParam{}), unix.EINVAL, "accept a failed queue pair")
			return qp.Destroy()
		},
		func(_ *net.TCPConn, id verbs.ID) error {
			qp := h.qp(id)
			testutil.Must(t, id.Accept(verbs.ConnParam{ResponderResources: 1}))
			return qp.Destroy()
		},
		func(c *net.TCPConn, id verbs.ID) error { return accept(c, id, c.CloseWrite) },
		func(c *net.TCPConn, id verbs.ID) error { return accept(c, id, id.Disconnect) },
		func(c *net.TCPConn, id verbs.ID) error {
			testutil.Must(t, c.CloseWrite())
			return accept(c, id, func() error { return nil })
		},
		func(c *net.TCPConn, id verbs.ID) error {
			return accept(c, id, func() error { return errors.Join(c.SetLinger(0), c.Close()) })
		},
	} {
		for range most + 1 {
			c := dial(h.l, request)
			id := h.event(verbs.EventConnectRequest).ID
			testutil.Must(t, end(c, id))
			testutil.Must(t, id.Destroy())
			_ = c.Close()
		}
	}
	for _, bytes := range []string{"", request[:9]} {
		before := h.counter("cm_invalid")
		for i := range uint64(most + 1) {
			testutil.Must(t, dial(h.l, bytes).Close())
			testutil.Until(t, "noticed", func() bool {
				return h.counter("cm_invalid") == before+i+1
			})
		}
	}
	// A listener that ends with requests that nobody has seen.
	l := testutil.Value(h.cm.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 0, 0))(t)
	before := h.counter("cm_rcvd")
	var waiting [9]net.Conn
	for i := range waiting {
		waiting[i] = dial(l, request)
	}
	testutil.Until(t, "requests", func() bool {
		return h.counter("cm_rcvd") == before+uint64(len(waiting))
	})
	testutil.Must(t, l.Destroy())
	for _, c := range waiting {
		testutil.Equal(t, answer(c), "MPA ID Rep Frame\x30\x02\x00\x04\x00\x00\x00\x00", "answer")
		testutil.Must(t, c.Close())
	}
	h.neighbour()
}
