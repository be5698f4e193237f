package soft

import (
	"flag"
	"net/netip"
	"testing"

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
		for _, addr := range []netip.Addr{v4, v6} {
			t.Run(c.name+" to "+addr.String(), func(t *testing.T) {
				if addr == v6 && c.faults.Loss > 0.1 {
					testutil.Soak(t, "it takes long")
				}
				mem := wiretest.New(c.faults)
				a := provider(t, mem.Host("a", v4, v6), c.engines, c.times)
				b := provider(t, mem.Host("b", v4.Next(), v6.Next()), c.engines, c.times)
				conformance(t, a, b, addr, c.rounds)
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
			conformance(t, a, b, netip.MustParseAddr(addr), 0)
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
				conformance(t, open(), open(), netip.MustParseAddr(addr), 0)
			})
		}
	}
}

func provider(t *testing.T, net wire.Network, engines int, times cm.Options) *Provider {
	p := New(Options{Network: net, Engines: engines, Background: true, CM: times})
	t.Cleanup(func() { testutil.Must(t, p.Close()) })
	return p
}

func conformance(t *testing.T, a, b *Provider, addr netip.Addr, rounds int) {
	verbsconf.Run(t, verbsconf.Setup{
		A: a, B: b, AddrA: addr, Rounds: rounds, Parallel: true,
		FailDestroy: func(verbs.QP) func() {
			a.failDestroy.Store(true)
			return func() { a.failDestroy.Store(false) }
		},
	})
}
