package app_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/testing/netiftest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// healing starts a server with listeners on a machine with addresses.
func healing(t *testing.T, listeners string, addresses ...string) (*live, *netiftest.Network) {
	t.Helper()
	n := &netiftest.Network{}
	n.Set(addresses...)
	return newLive(t, listeners, sub(anyHosts, inRAM), app.Options{
		Network: n, Retry: time.Hour, Settle: time.Millisecond,
	}), n
}

// ports returns the listeners as "name: address state", in the order of their port IDs.
func ports(s *harness.Harness) string {
	var list []string
	for _, l := range s.Listeners().States() {
		list = append(list, fmt.Sprintf("%d %s: %s %s", l.PortID, l.Name, l.Address, l.State))
	}
	return strings.Join(list, "\n")
}

func wantPorts(t *testing.T, s *harness.Harness, want ...string) {
	t.Helper()
	list := strings.Join(want, "\n")
	testutil.Until(t, "ports\n"+list+"\n", func() bool { return ports(s) == list })
}

func at(address string, port uint16) string {
	return fmt.Sprintf("{transport: tcp, address: %s, port: %d}", address, port)
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
		return len(l.Addrs()) == config.MaxListeners
	})
	states := l.Listeners().States()
	if last := states[len(states)-1]; states[0].Address != fmt.Sprintf("127.0.9.9:%d",
		port) || !strings.Contains(last.Reason, "has 1000 addresses, and there are at most 256") {
		t.Errorf("%d ports, first %+v, last %+v", len(l.Addrs()), states[0], last)
	}
}

// TestAddressStorm: many changes cause few updates, each of a few log lines, and the last one is
// not lost.
func TestAddressStorm(t *testing.T) {
	port := testutil.FreePort(t)
	log, n := new(testutil.Log), &netiftest.Network{}
	l := newLive(t, at("127.0.9.0/24", port), sub(anyHosts, inRAM), app.Options{
		Network: n, Log: log.Logger(), Retry: time.Hour, Settle: time.Millisecond,
	})
	for i := range 1000 {
		n.Set(fmt.Sprintf("eth0 127.0.9.%d", 1+i%2))
	}
	n.Set("eth0 127.0.9.1", "eth0 127.0.9.2", "eth0 127.0.9.3")
	testutil.Until(t, "three ports", func() bool { return len(l.Addrs()) == 3 })
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
		s := started(t, app.Options{
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
		testutil.True(t, len(s.Target.Ports()) == 0, "%s: the discovery log has %v", address,
			s.Target.Ports())
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
	s := started(t, app.Options{
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
