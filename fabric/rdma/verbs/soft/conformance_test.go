package soft

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/cm"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/mpa"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbsconf"
	"github.com/nvmf-target/nvmf-target/internal/testing/wiretest"
)

func TestMain(m *testing.M) {
	// More than there are processors, since they wait for repeated messages and time limits.
	_ = flag.Set("test.parallel", "16")
	testutil.Main(m)
}

// A busy machine may suspend a test for seconds: nobody gives up within two. On a network that
// loses much, messages are repeated sooner and more often.
var (
	patient = cm.Options{ResponseTimeout: 15, AckTimeout: 17, Replies: 16}
	quick   = cm.Options{ResponseTimeout: 12, AckTimeout: 16, Retries: 128, Replies: 128}
)

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name    string
		faults  wiretest.Options
		engines int
		rounds  int
		times   cm.Options
	}{
		{"no faults", wiretest.Options{}, 1, 0, patient},
		{"four engines", wiretest.Options{Loss: 0.01}, 4, 20, patient},
		{"15 % loss", wiretest.Options{Loss: 0.15}, 1, 5, quick},
		{"all faults", wiretest.Options{
			Loss: 0.01, Duplicate: 0.05, Corrupt: 0.02, Reorder: 0.05, Mark: 0.05, Refuse: 0.1,
		}, 1, 20, quick},
	} {
		v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
		parts := 1
		if c.faults.Loss > 0.1 { // it waits long for what is lost
			parts = 4
		}
		for i := range 2 * parts {
			addr, part := []netip.Addr{v4, v6}[i/parts], i%parts
			t.Run(fmt.Sprintf("%s to %v, part %d", c.name, addr, part), func(t *testing.T) {
				if addr == v6 && parts > 1 {
					testutil.Soak(t, "it takes long")
				}
				mem := wiretest.New(c.faults)
				a := provider(t, mem.Host("a", v4, v6), c.engines, c.times)
				b := provider(t, mem.Host("b", v4.Next(), v6.Next()), c.engines, c.times)
				conformance(t, a, b, verbsconf.Setup{
					AddrA: addr, Rounds: c.rounds, Part: part, Parts: parts,
				})
			})
		}
	}
}

// TestConformanceUDP uses sockets on the loopback interface, with ports of its own. IPv6 has only
// one address there, so the host connects to itself.
func TestConformanceUDP(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		t.Run(addr, func(t *testing.T) {
			port := testutil.FreePort(t) // of TCP: other processes take another one
			host := func(v4, v6 string) *Provider {
				return provider(t, wire.NewUDP(wire.UDPOptions{
					IPv4: netip.MustParseAddr(v4), IPv6: netip.MustParseAddr(v6), Port: port,
				}), 2, patient)
			}
			a := host("127.0.0.1", "::1")
			b := a
			if addr != "::1" {
				b = host("127.0.0.2", "2001:db8::2") // RFC 3849: nobody has this IPv6 address
			}
			conformance(t, a, b, verbsconf.Setup{AddrA: netip.MustParseAddr(addr)})
		})
	}
}

// TestConformanceTCP uses TCP sockets on the loopback interface, which has one IPv6 address.
func TestConformanceTCP(t *testing.T) {
	for _, c := range []struct {
		name    string
		engines int
		options mpa.Options
	}{
		{"plain", 1, mpa.Options{}},
		{"checksums", 4, mpa.Options{CRC: true}},
		{"peer to peer", 1, mpa.Options{RTR: true}},
	} {
		for _, addr := range []string{"127.0.0.1", "::1"}[:min(c.engines, 2)] {
			t.Run(c.name+" to "+addr, func(t *testing.T) {
				open := func() *Provider {
					p := New(Options{
						IWARP: true, Engines: c.engines, Background: true, MPA: c.options,
					})
					t.Cleanup(func() { testutil.Must(t, p.Close()) })
					return p
				}
				conformance(t, open(), open(), verbsconf.Setup{AddrA: netip.MustParseAddr(addr)})
			})
		}
	}
}

func provider(t *testing.T, net wire.Network, engines int, times cm.Options) *Provider {
	p := New(Options{Network: net, Engines: engines, Background: true, CM: times})
	t.Cleanup(func() { testutil.Must(t, p.Close()) })
	return p
}

func conformance(t *testing.T, a, b *Provider, s verbsconf.Setup) {
	s.A, s.B, s.Parallel = a, b, true
	s.FailDestroy = func(verbs.QP) func() {
		a.stuck.Store(true)
		return func() { a.stuck.Store(false) }
	}
	verbsconf.Run(t, s)
}

// counting is a network that counts the calls of Open and fails the first one.
type counting struct {
	wire.Network
	opens int
}

func (c *counting) Open(n int) ([]wire.Conn, error) {
	if c.opens++; c.opens == 1 {
		return nil, unix.EADDRINUSE
	}
	return c.Network.Open(n)
}

// TestProvider opens the sockets when they are needed, once, and tries again after an error.
func TestProvider(t *testing.T) {
	net := &counting{
		Network: wiretest.New(wiretest.Options{}).Host("a", netip.MustParseAddr("192.0.2.1")),
	}
	p := New(Options{Network: net})
	testutil.Equal(t, net.opens, 0, "calls of Open by New")
	_, err := p.NewCM()
	testutil.True(t, errors.Is(err, unix.EADDRINUSE), "NewCM: %v", err)
	list := testutil.Value(p.Devices())(t)
	testutil.True(t, len(list) == 1 && list[0].Name == "soft0" && !list[0].IWARP, "%+v", list)
	c := testutil.Value(p.NewCM())(t)
	testutil.Equal(t, net.opens, 2, "calls of Open")
	names := map[string]bool{}
	for _, c := range p.Counters() {
		testutil.True(t, c.Device == "soft0" && c.Port == "1" && c.Value == 0 && !names[c.Counter],
			"%+v", c)
		names[c.Counter] = true
	}
	testutil.True(t, names["retransmissions"] && names["rcvd_icrc_errors"] && names["cm_dropped"],
		"%v", names)
	testutil.Must(t, c.Close())
	testutil.Must(t, p.Close())
	testutil.Must(t, p.Close())
	_, err = p.Devices()
	testutil.True(t, errors.Is(err, verbs.ErrClosed), "Devices of a closed provider: %v", err)
	testutil.Must(t, New(Options{}).Close()) // never used
}

// TestLinkLocal connects to a link-local IPv6 address of this machine: only with its zone it is an
// address.
func TestLinkLocal(t *testing.T) {
	net := wire.NewUDP(wire.UDPOptions{Port: testutil.FreePort(t)})
	list := testutil.Value(net.Addrs())(t)
	at := slices.IndexFunc(list, func(a netip.Addr) bool {
		return a.Is6() && a.IsLinkLocalUnicast()
	})
	if at < 0 {
		t.Skip("no interface has a link-local IPv6 address")
	}
	addr := list[at]
	cm := testutil.Value(provider(t, net, 1, patient).NewCM())(t)
	l := testutil.Value(cm.Listen(netip.AddrPortFrom(addr, 0), 1, 0))(t)
	next := func(want verbs.EventType) verbs.Event {
		t.Helper()
		ev := testutil.Value(cm.Next())(t)
		testutil.MustEqual(t, ev.Type, want, "event")
		return ev
	}
	active := testutil.Value(cm.NewID())(t)
	testutil.Must(t, active.ResolveAddr(netip.AddrPort{}, l.Local(), 0))
	next(verbs.EventAddrResolved)
	testutil.Must(t, active.ResolveRoute(0))
	next(verbs.EventRouteResolved)
	pd := testutil.Value(active.Device().AllocPD())(t)
	cq := testutil.Value(active.Device().CreateCQ(16, nil, 0))(t)
	init := verbs.QPInit{
		SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1,
	}
	qa := testutil.Value(active.CreateQP(pd, init))(t)
	testutil.Must(t, active.Connect(verbs.ConnParam{}))
	passive := next(verbs.EventConnectRequest).ID
	testutil.Equal(t, passive.Local(), l.Local(), "local address")
	testutil.Equal(t, passive.Remote().Addr(), addr, "remote address")
	qp := testutil.Value(passive.CreateQP(pd, init))(t)
	testutil.Must(t, passive.Accept(verbs.ConnParam{}))
	next(verbs.EventEstablished)
	next(verbs.EventEstablished)
	for _, destroy := range []func() error{
		qa.Destroy, qp.Destroy, active.Destroy, passive.Destroy, l.Destroy, cq.Destroy, pd.Dealloc,
		cm.Close,
	} {
		testutil.Must(t, destroy())
	}
}
