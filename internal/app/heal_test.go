package app

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/netiftest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// healing starts a server with listeners on a machine with addresses.
func healing(t *testing.T, listeners string, addresses ...string) (*live, *netiftest.Network) {
	t.Helper()
	n := &netiftest.Network{}
	n.Set(addresses...)
	l := &live{t: t, dir: t.TempDir()}
	l.s = started(t, Options{
		Config: l.parse(listeners, sub(anyHosts, inRAM)), Network: n, Retry: time.Hour,
		Settle: time.Millisecond,
	})
	return l, n
}

// ports returns the listeners as "name: address state", in the order of their port IDs.
func ports(s *Server) string {
	var list []string
	for _, l := range s.listeners.States() {
		list = append(list, fmt.Sprintf("%d %s: %s %s", l.PortID, l.Name, l.Address, l.State))
	}
	return strings.Join(list, "\n")
}

func wantPorts(t *testing.T, s *Server, want ...string) {
	t.Helper()
	list := strings.Join(want, "\n")
	testutil.Until(t, "ports\n"+list+"\n", func() bool { return ports(s) == list })
}

func at(address string, port uint16) string {
	return fmt.Sprintf("{transport: tcp, address: %s, port: %d}", address, port)
}

// discovered returns the addresses in the discovery log that a host reads at one of them.
func discovered(t *testing.T, addr netip.AddrPort) (addrs []string, generation uint64) {
	t.Helper()
	ctx := testutil.Context(t)
	c := testutil.Value(host.Connect(ctx, host.TCP{Addr: addr}, hostOptions(nvme.DiscoveryNQN)))(t)
	defer c.Close()
	header, list, err := hosttest.Discover(ctx, c)
	testutil.Must(t, err)
	for _, d := range list {
		if d.SUBTYPE == nvme.SubsystemNVM {
			addrs = append(addrs, strings.TrimRight(string(d.TRADDR[:]), " \x00"))
		}
	}
	return addrs, header.GENCTR
}

// TestNetworkHeals: an address that goes and returns takes its port along, with its ID. Other ports
// are unaffected.
func TestNetworkHeals(t *testing.T) {
	port := testutil.FreePort(t)
	l, n := healing(t, at("127.0.9.0/24", port), "eth0 127.0.9.1", "eth1 127.0.9.2",
		"eth1 127.0.8.1")
	name := fmt.Sprintf("tcp 127.0.9.0/24:%d", port)
	first := fmt.Sprintf("1 %s: 127.0.9.1:%d up", name, port)
	second := fmt.Sprintf("2 %s: 127.0.9.2:%d up", name, port)
	wantPorts(t, l.s, first, second)
	one := testutil.Value(l.connect(testNQN, hostA, 0))(t)
	two := testutil.Value(l.connect(testNQN, hostA, 1))(t)
	n.Set("eth1 127.0.9.2")
	l.wantEnded("lost address", one)
	wantPorts(t, l.s, second)
	there := l.s.Addrs()[0].AddrPort
	list, generation := discovered(t, there)
	testutil.EqualSlices(t, list, []string{"127.0.9.2"}, "discovery log")
	n.Set("eth0 127.0.9.1", "eth1 127.0.9.2", "eth1 127.0.9.3")
	wantPorts(t, l.s, first, second, fmt.Sprintf("3 %s: 127.0.9.3:%d up", name, port))
	list, again := discovered(t, there)
	testutil.True(t, slices.Equal(list, []string{"127.0.9.1", "127.0.9.2", "127.0.9.3"}) &&
		again > generation, "discovery log: %v, generation %d, %d before", list, again, generation)
	testutil.Check(t, testutil.Err(l.connect(testNQN, hostA, 0)))
	testutil.True(t, two.Err() == nil, "the other host: %v", two.Err())
	n.Set()
	wantPorts(t, l.s, fmt.Sprintf("0 %s: 127.0.9.0/24:%d waiting", name, port))
}

// TestAddressHeals: an address that an interface had and lost, or that is switched off, is waited
// for. An address that no interface ever had is tried.
func TestAddressHeals(t *testing.T) {
	port := testutil.FreePort(t)
	l, n := healing(t, at("127.0.9.1", port))
	up := fmt.Sprintf("1 tcp 127.0.9.1:%d: 127.0.9.1:%[1]d up", port)
	waits := strings.Replace(strings.Replace(up, "up", "waiting", 1), "1", "0", 1)
	wantPorts(t, l.s, up)
	n.Set("eth0 127.0.9.1 down")
	wantPorts(t, l.s, waits)
	n.Set("eth0 127.0.9.1")
	wantPorts(t, l.s, up)
	n.Set("eth1 127.0.9.2")
	wantPorts(t, l.s, waits)
	r := l.s.listeners.States()[0].Reason
	testutil.True(t, strings.Contains(r, "no network interface has such"), "reason %q", r)
	n.Set("eth1 127.0.9.1")
	wantPorts(t, l.s, up)
}

// TestListenersShareAddresses: the more specific listener has an address, and another one takes it
// over without an end of connections.
func TestListenersShareAddresses(t *testing.T) {
	port := testutil.FreePort(t)
	network, one, eth0 := at("127.0.9.0/24", port), at("127.0.9.2", port), at("eth0", port)
	l, _ := healing(t, network, "eth0 127.0.9.1", "eth0 127.0.9.2")
	c := testutil.Value(l.connect(testNQN, hostA, 1))(t)
	row := func(id int, name, address string) string {
		return fmt.Sprintf("%d tcp %s:%d: %s:%[3]d up", id, name, port, address)
	}
	subsystems := sub(anyHosts, inRAM)
	l.apply(network+", "+one, subsystems)
	wantPorts(t, l.s, row(1, "127.0.9.0/24", "127.0.9.1"), row(2, "127.0.9.2", "127.0.9.2"))
	l.apply(network, subsystems)
	wantPorts(t, l.s, row(1, "127.0.9.0/24", "127.0.9.1"), row(2, "127.0.9.0/24", "127.0.9.2"))
	l.apply(network+", "+eth0, subsystems)
	wantPorts(t, l.s, row(1, "127.0.9.0/24", "127.0.9.1"), row(2, "127.0.9.0/24", "127.0.9.2"),
		fmt.Sprintf("0 tcp eth0:%d: eth0:%[1]d waiting", port))
	testutil.Check(t, c.Err())
}

// TestRequiredNetwork: with on_unavailable: fail there must be an address at the start, but not
// later.
func TestRequiredNetwork(t *testing.T) {
	port := testutil.FreePort(t)
	required := fmt.Sprintf("{transport: tcp, address: eth0, port: %d, on_unavailable: fail}", port)
	l, n := healing(t, listenAny, "eth1 127.0.9.1")
	err := l.refuse(listenAny+", "+required, sub(anyHosts, inRAM))
	testutil.True(t, strings.Contains(err.Error(), "no network interface called eth0") &&
		strings.Contains(err.Error(), "listeners[1]"), "%v", err)
	taken := listen(t, fmt.Sprintf("127.0.9.1:%d", port))
	n.Set("eth0 127.0.9.1", "eth0 127.0.9.2")
	l.apply(listenAny+", "+required, sub(anyHosts, inRAM))
	if got := ports(l.s); !strings.Contains(got, fmt.Sprintf("127.0.9.1:%d waiting", port)) {
		t.Errorf("ports %s", got)
	}
	_ = taken.Close()
	n.Set() // the target goes on without it
	n.Set("eth0 127.0.9.1")
	wantPorts(t, l.s, fmt.Sprintf("1 tcp 127.0.0.1:0: %v up", l.s.Addrs()[0].AddrPort),
		fmt.Sprintf("2 tcp eth0:%d: 127.0.9.1:%[1]d up", port))
}

// TestTooManyAddresses: more addresses than there may be ports are not served, and the others stay.
func TestTooManyAddresses(t *testing.T) {
	port := testutil.FreePort(t)
	l, n := healing(t, at("eth0", port), "eth0 127.0.9.9")
	var list []string
	for i := range 1000 {
		list = append(list, fmt.Sprintf("eth0 127.0.%d.%d", 8+i/250, 1+i%250))
	}
	n.Set(list...)
	testutil.Until(t, "as many ports are open as there may be", func() bool {
		return len(l.s.Addrs()) == config.MaxListeners
	})
	states := l.s.listeners.States()
	if last := states[len(states)-1]; states[0].Address != fmt.Sprintf("127.0.9.9:%d",
		port) || !strings.Contains(last.Reason, "has 1000 addresses, and there are at most 256") {
		t.Errorf("%d ports, first %+v, last %+v", len(l.s.Addrs()), states[0], last)
	}
}

// TestAddressStorm: many changes cause few updates, each of a few log lines, and the last one is
// not lost.
func TestAddressStorm(t *testing.T) {
	port := testutil.FreePort(t)
	l := &live{t: t, dir: t.TempDir()}
	log, n := new(testutil.Log), &netiftest.Network{}
	l.s = started(t, Options{
		Config: l.parse(at("127.0.9.0/24", port), sub(anyHosts, inRAM)), Network: n,
		Log: log.Logger(), Retry: time.Hour, Settle: time.Millisecond,
	})
	for i := range 1000 {
		n.Set(fmt.Sprintf("eth0 127.0.9.%d", 1+i%2))
	}
	n.Set("eth0 127.0.9.1", "eth0 127.0.9.2", "eth0 127.0.9.3")
	testutil.Until(t, "three ports", func() bool { return len(l.s.Addrs()) == 3 })
	lines := strings.Count(log.String(), "127.0.9.")
	testutil.True(t, lines <= 3*n.Reads(), "%d updates, %d lines", n.Reads(), lines)
}

// TestRDMADeviceHeals: a removed device takes its ports along, however its address is configured,
// and brings them back.
func TestRDMADeviceHeals(t *testing.T) {
	for _, address := range []string{"rxe0", "eth0", "127.0.9.1", "127.0.9.0/24"} {
		network := verbstest.New(verbstest.Options{Async: true})
		t.Cleanup(network.Close)
		device := verbstest.RoCE("rxe0", netip.MustParseAddr("127.0.9.1"))
		network.AddHost("target", device)
		network.AddHost("host", verbstest.RoCE("rxe0", netip.MustParseAddr("127.0.9.2")))
		n := &netiftest.Network{}
		n.RDMA = map[string][]string{"rxe0": {"eth0"}}
		n.Set("eth0 127.0.9.1", "eth1 127.0.8.1")
		s := started(t, Options{
			Config: parse(t, "{transport: rdma, address: "+address+"}"), Network: n,
			Verbs: network.Provider("target"), Retry: time.Millisecond,
			Settle: time.Millisecond,
		})
		state := func(state string) string {
			return fmt.Sprintf("1 rdma %s:4420: 127.0.9.1:4420 %s", address, state)
		}
		wantPorts(t, s, state("up"))
		network.RemoveDevice("target", "rxe0")
		wantPorts(t, s, state("waiting"))
		testutil.True(t, len(s.Target().Ports()) == 0, "%s: the discovery log has %v", address,
			s.Target().Ports())
		network.AddHost("target", device)
		wantPorts(t, s, state("up"))
		writeAndRead(t, host.RDMA{
			Provider: network.Provider("host"), Addr: netip.MustParseAddrPort("127.0.9.1:4420"),
		})
	}
}

// TestRealNetworkHeals: the same with addresses and an interface of Linux.
func TestRealNetworkHeals(t *testing.T) {
	t.Parallel()
	if !testutil.OwnNetwork(t) {
		return
	}
	up := make(chan fabric.Addr, 4)
	s := started(t, Options{
		Config: parse(t, at("br0", 4420)+", "+at("10.9.0.1", 4421)), Retry: time.Hour,
		Settle:     time.Millisecond,
		ListenerUp: func(a fabric.Addr) { up <- a },
	})
	lost := func() {
		wantPorts(t, s, "0 tcp 10.9.0.1:4421: 10.9.0.1:4421 waiting",
			"0 tcp br0:4420: br0:4420 waiting")
	}
	back := func() {
		wantPorts(t, s, "1 tcp 10.9.0.1:4421: 10.9.0.1:4421 up", "2 tcp br0:4420: 10.9.0.1:4420 up")
		waitUp(t, up)
		waitUp(t, up)
	}
	testutil.IP(t, "link set br0 addrgenmode none") // no link-local address
	for range 2 {
		testutil.IP(t, "addr add 10.9.0.1/24 dev br0")
		lost()
		testutil.IP(t, "link set br0 up")
		back()
		testutil.IP(t, "link set br0 down")
		lost()
		testutil.IP(t, "link set br0 up")
		back()
		testutil.IP(t, "addr del 10.9.0.1/24 dev br0")
		lost()
		testutil.IP(t, "link set br0 down")
	}
}
