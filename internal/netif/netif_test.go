package netif

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// TestRDMA: the interfaces of devices with GIDs, and of one without.
func TestRDMA(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"rxe0/ports/1/gid_attrs/ndevs/0": "eth0\n", "rxe0/ports/1/gid_attrs/ndevs/1": "eth0\n",
		"rxe0/ports/2/gid_attrs/ndevs/0": "eth0.5\n",
		"old0/device/net/eth1/mtu":       "1500\n", "old0/ports/1/state": "4: ACTIVE\n",
	} {
		file = filepath.Join(dir, "class/infiniband", file)
		testutil.Must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755),
			os.WriteFile(file, []byte(text), 0o644)))
	}
	want := map[string][]string{"rxe0": {"eth0", "eth0.5"}, "old0": {"eth1"}}
	got := (Machine{dir}).rdma([]string{"*"})
	testutil.True(t, reflect.DeepEqual(got, want), "got %v", got)
	delete(want, "old0")
	got = (Machine{dir}).rdma([]string{"rxe0", "none"})
	testutil.True(t, reflect.DeepEqual(got, want), "got %v", got)
}

// TestWatch: changes of addresses and links are noticed, and the new state is read.
func TestWatch(t *testing.T) {
	if !testutil.OwnNetwork(t) {
		return
	}
	changed := make(chan struct{}, 1)
	stop := testutil.Value(Linux().Watch(func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}))(t)
	defer stop()
	for _, step := range []struct{ ip, want string }{
		{"addr add 10.9.8.7/24 dev br0", "10.9.8.7 down"},
		{"link set br0 up", "10.9.8.7 up"},
		{"addr add fd00::5/64 dev br0 nodad", "10.9.8.7 up fd00::5 up"},
		{"addr del 10.9.8.7/24 dev br0", "fd00::5 up"},
		{"link del br0", ""},
	} {
		testutil.IP(t, step.ip)
		until(t, changed, step.want)
	}
}

// TestDroppedEvents: events dropped by the kernel count as a change.
func TestDroppedEvents(t *testing.T) {
	if !testutil.OwnNetwork(t) {
		return
	}
	f := testutil.Value(open(unix.NETLINK_ROUTE, unix.RTMGRP_IPV4_IFADDR))(t)
	defer f.Close()
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) // the minimum
		})
	}
	testutil.Must(t, err)
	var commands []string
	for i := range 50 {
		commands = append(commands, fmt.Sprintf("addr add 10.9.8.%d/32 dev br0", i+1))
	}
	testutil.IP(t, commands...)
	changed := make(chan struct{}, 100)
	go read(f, func([]byte) bool { return false }, func() { changed <- struct{}{} })
	testutil.Receive(t, "a change", changed)
}

// until waits for a change after which br0 has these addresses, apart from link-local ones.
func until(t *testing.T, changed <-chan struct{}, want string) {
	t.Helper()
	for {
		testutil.Receive(t, "a change to "+want, changed)
		s, err := Linux().Read()
		var got []string
		for _, a := range s.Addresses {
			switch {
			case a.Interface != "br0" || a.IsLinkLocalUnicast() && a.Zone() == "br0":
			case a.Up:
				got = append(got, a.String(), "up")
			default:
				got = append(got, a.String(), "down")
			}
		}
		if err == nil && strings.Join(got, " ") == want {
			return
		}
	}
}

// TestManyInterfaces: the addresses of many interfaces are read at once and assigned to their
// interfaces.
func TestManyInterfaces(t *testing.T) {
	if !testutil.OwnNetwork(t) {
		return
	}
	const n = 250
	commands := []string{"addr add 10.8.0.1 peer 10.8.0.2/32 dev lo"}
	for i := range n {
		commands = append(commands, fmt.Sprintf("link add d%d type bridge", i),
			fmt.Sprintf("addr add 10.9.0.%d/32 dev d%[1]d", i))
	}
	testutil.IP(t, commands...)
	s, err := Linux().Read()
	testutil.MustTrue(t, err == nil && len(s.Addresses) == n+1, "%d addresses, %v",
		len(s.Addresses), err)
	// Reading the addresses of each interface alone would list all of them each time.
	least := testing.AllocsPerRun(1, func() { _, err = Linux().Read() })
	if most := float64(50 * n); err != nil || least > most {
		t.Errorf("%v allocations for %d interfaces, more than %v, %v", least, n, most, err)
	}
	a := s.Addresses[0]
	testutil.True(t, a.Addr.String() == "10.8.0.1" && a.Interface == "lo" && !a.Up, "%+v", a)
	for i, a := range s.Addresses[1:] {
		testutil.True(t, a.Addr.String() == fmt.Sprint("10.9.0.", i) &&
			a.Interface == fmt.Sprint("d", i) && !a.Up, "%+v", a)
	}
}

// syn sends a SYN as if it came from another machine.
func syn(t *testing.T, from, to netip.AddrPort) {
	t.Helper()
	ip := &layers.IPv4{
		Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP,
		SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice(),
	}
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(from.Port()), DstPort: layers.TCPPort(to.Port()),
		SYN: true, Window: 1000,
	}
	b := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	testutil.Must(t, errors.Join(tcp.SetNetworkLayerForChecksum(ip),
		gopacket.SerializeLayers(b, options, ip, tcp)))
	fd := testutil.Value(
		unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW))(t)
	defer func() { _ = unix.Close(fd) }()
	at := &unix.SockaddrInet4{Addr: to.Addr().As4()}
	testutil.Must(t, unix.Sendto(fd, b.Bytes(), 0, at))
}

// TestHandshakes: SYN answers that reach nobody are listed, and the interface that they take is
// found.
func TestHandshakes(t *testing.T) {
	if !testutil.OwnNetwork(t) {
		return
	}
	testutil.IP(t, "link set lo up", "link set br0 up", "addr add 10.9.8.1/24 dev br0",
		"neigh add 10.9.8.2 lladdr 02:00:00:00:00:02 dev br0",
		"route add blackhole 10.9.9.0/24", "link add br1 type bridge", "link set br1 up",
		"rule add from 10.9.8.1 to 10.9.8.3 table 100", "route add default dev br1 table 100",
		"addr add fd09::1/64 dev br1 nodad")
	for _, address := range []string{"10.9.8.1:0", "[::]:0"} {
		l := testutil.Value(net.Listen("tcp", address))(t)
		port := uint16(l.Addr().(*net.TCPAddr).Port)
		local := netip.AddrPortFrom(netip.MustParseAddr("10.9.8.1"), port)
		remote := netip.MustParseAddrPort("10.9.8.2:1234")
		listed := func() bool {
			list, err := Linux().Handshakes()
			return err == nil && slices.Contains(list, Handshake{Local: local, Remote: remote})
		}
		testutil.True(t, !listed(), "%s: listed before it began", address)
		syn(t, remote, local)
		testutil.Until(t, "a handshake", listed)
		testutil.Check(t, l.Close())
	}
	for _, row := range []struct {
		from, to, name string
		err            error
	}{
		{"10.9.8.1", "10.9.8.2", "br0", nil},
		{"10.9.8.1", "10.9.8.3", "br1", nil},
		{"10.9.8.1", "::ffff:10.9.8.3", "br1", nil},
		{"fd09::1", "fd09::2", "br1", nil},
		{"10.9.8.1", "10.9.9.1", "", unix.EINVAL},
		{"10.9.8.1", "10.9.7.1", "", unix.ENETUNREACH},
	} {
		name, err := Linux().Route(netip.MustParseAddr(row.from), netip.MustParseAddr(row.to))
		testutil.True(t, name == row.name && errors.Is(err, row.err),
			"from %s to %s: %q, %v, want %q, %v", row.from, row.to, name, err, row.name, row.err)
	}
}
