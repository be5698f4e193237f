package netif

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
