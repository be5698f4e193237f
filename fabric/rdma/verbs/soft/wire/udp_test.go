package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

var (
	loopA = netip.MustParseAddr("127.0.0.2")
	loopB = netip.MustParseAddr("127.0.0.3")
	loop6 = netip.IPv6Loopback()
)

// udpPair is two networks on loopback addresses, with the given number of engines and small receive
// buffers.
func udpPair(t testing.TB, engines int) (a, b []Conn) {
	t.Helper()
	port := testutil.FreePort(t)
	a = open(t, NewUDP(UDPOptions{IPv4: loopA, IPv6: addrA6, Port: port}), engines)
	b = open(t, NewUDP(UDPOptions{IPv4: loopB, IPv6: addrA6, Port: port}), engines)
	for _, c := range slices.Concat(a, b) { // as without privileges before Linux 6.18
		testutil.Must(t, unix.SetsockoptInt(c.(*udpConn).receiver[ip4], unix.SOL_SOCKET,
			unix.SO_RCVBUF, 212_992))
	}
	return a, b
}

// recvAll receives until n packets have come, and copies them.
func recvAll(t testing.TB, c Conn, n int) (all []Packet) {
	t.Helper()
	for len(all) < n {
		testutil.MustTrue(t, readable(t, c, 10_000),
			"%d packets of %d: %d with a wrong ICRC, %d malformed", len(all), n,
			c.Stats().BadICRC.Load(), c.Stats().Malformed.Load())
		for _, p := range recv(t, c) {
			p.Data = bytes.Clone(p.Data)
			all = append(all, p)
		}
	}
	if readable(t, c, 0) { // the last Recv may have had no time to see that nothing is left
		all = append(all, recv(t, c)...)
	}
	testutil.MustTrue(t, len(all) == n && !readable(t, c, 0), "%d packets, want %d", len(all), n)
	return all
}

// Every engine and the communication manager get the packets to their queue pairs.
func TestUDPSteering(t *testing.T) {
	const engines, each = 3, 40
	a, b := udpPair(t, engines)
	p := &Path{Local: loopA, Remote: loopB}
	ports := map[netip.AddrPort]bool{}
	for i := range each {
		for e := range engines {
			qpn := uint32(e+engines*(i%20))<<engineShift | uint32(i+2)
			send(t, a[e], p, qpn, uint32(i), 256)
			a[e].Flush()
		}
		send(t, a[engines], p, CMQPN, uint32(i), 256)
		a[engines].Flush()
	}
	for e, c := range b {
		for i, k := range recvAll(t, c, each) {
			qpn := binary.BigEndian.Uint32(k.Data[4:]) & packet.PSNMask
			testutil.MustTrue(t, received(k, uint32(i), 256) && k.Local.Addr() == loopB &&
				k.Remote.Addr() == loopA && !k.CE && Steer(qpn, engines) == e,
				"engine %d: packet %d: %+v", e, i, k)
			ports[k.Remote] = true
		}
	}
	testutil.True(t, len(ports) == engines+1, "source ports %v, want one for each engine", ports)
}

// A network on all addresses: each packet tells the address that it came to, and goes out from the
// address of its path. IPv6 works as IPv4 does. Queue pairs of one network reach each other.
func TestUDPAddresses(t *testing.T) {
	n := NewUDP(UDPOptions{Port: testutil.FreePort(t)})
	c := open(t, n, 1)[0]
	paths := []*Path{
		{Local: loopA, Remote: loopB},
		{Local: loopB, Remote: netip.MustParseAddr("127.1.2.3"), TOS: 3},
		{Local: loop6, Remote: loop6, TOS: 0x40 | ECT0},
		{Local: loop6, Remote: loop6, TOS: 3},
	}
	if c.(*udpConn).sender[ip6] < 0 {
		t.Log("no IPv6 on this machine")
		paths = paths[:2]
	}
	for _, p := range paths {
		for _, size := range []int{0, 4, 1024, 4096} {
			send(t, c, p, 77, 9, size)
			c.Flush()
			k := recvAll(t, c, 1)[0]
			testutil.True(t, received(k, 9, size) && k.Local.Addr() == p.Remote &&
				k.Remote.Addr() == p.Local && k.CE == (p.TOS&3 == 3),
				"%v, %d bytes: from %v to %v, CE %v", p.Local, size, k.Remote, k.Local, k.CE)
		}
		local, mtu, err := n.Route(netip.Addr{}, p.Remote)
		testutil.True(t, err == nil && mtu == 4096 && local.IsLoopback(), "route to %s: %s, %d, %v",
			p.Remote, local, mtu, err)
		if local, _, err := n.Route(p.Local, p.Remote); err != nil || local != p.Local {
			t.Errorf("route from %s to %s: %s, %v", p.Local, p.Remote, local, err)
		}
	}
	if _, _, err := n.Route(addrA, loopA); err == nil {
		t.Error("a route from an address of others")
	}
	testutil.True(t, slices.Contains(testutil.Value(n.Addrs())(t),
		netip.MustParseAddr("127.0.0.1")), "127.0.0.1 is missing")
	testTimer(t, c)
}

// Packets that cannot be sent are dropped, and the others of the batch go out.
func TestUDPUnsendable(t *testing.T) {
	a, b := udpPair(t, 1)
	for i, p := range []*Path{
		{Local: loopA, Remote: loopB},
		{Local: addrA, Remote: loopB}, // not our address
		{Local: loopA, Remote: loopB},
		{Local: loopA, Remote: loop6},
		{Remote: loopB},
		{Local: loopA, Remote: loopB},
	} {
		send(t, a[0], p, 5, uint32(i), 0)
	}
	a[0].Flush()
	got := recvAll(t, b[0], 3)
	dropped, sent := a[0].Stats().Dropped.Load(), a[0].Stats().Sent.Load()
	testutil.True(t, received(got[2], 5, 0) && dropped == 3 && sent == 3, "%d dropped, %d sent",
		dropped, sent)
}

func TestUDPPortTaken(t *testing.T) {
	port := testutil.FreePort(t)
	n := NewUDP(UDPOptions{IPv4: loopA, IPv6: addrA6, Port: port})
	open(t, n, 1)
	if _, err := n.Open(1); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("opened twice: %v", err)
	}
	if _, err := NewUDP(UDPOptions{Port: port}).Open(1); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("opened all addresses: %v", err)
	}
	if _, err := NewUDP(UDPOptions{IPv4: addrA, IPv6: addrA6}).Open(1); err == nil {
		t.Error("opened with addresses of others")
	}
}

// Only packets with the right ICRC get through.
func TestUDPHostile(t *testing.T) {
	_, b := udpPair(t, 1)
	c := b[0].(*udpConn)
	from := testutil.Value(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 9)}))(t)
	defer from.Close()
	source := from.LocalAddr().(*net.UDPAddr).AddrPort()
	to := netip.AddrPortFrom(loopB, c.net.port)
	datagram := func(n int, id uint16) []byte {
		p := make([]byte, packet.BTHSize+n+packet.ICRCSize)
		h := packet.BTH{Opcode: packet.SendOnly, PKey: packet.PKeyDefault, QPN: 5, PSN: 1}
		h.Put(p)
		for i := range n {
			p[packet.BTHSize+i] = byte(1 + i)
		}
		var v packet.ICRC
		v.Set(netip.MustParseAddr("127.0.0.9"), loopB, source.Port(), to.Port())
		v.Identify(id)
		v.Put(p)
		return p
	}
	flip := func(p []byte, i int) []byte { p[i] ^= 1; return p }
	bad, malformed := uint64(0), uint64(0)
	for _, tt := range []struct {
		name                string
		data                []byte
		arrives, badICRC, m int
	}{
		{"right", datagram(64, 0), 1, 0, 0},
		{"a sender that counts identifications", datagram(64, 0xfedc), 1, 0, 0},
		{"FECN and BECN on the way", flip(datagram(64, 0), 4), 1, 0, 0},
		{"opcode", flip(datagram(64, 0), 0), 0, 1, 0},
		{"payload", flip(datagram(64, 0), 40), 0, 1, 0},
		{"ICRC", flip(datagram(64, 0), 12+64), 0, 1, 0},
		{"other source port", func() []byte {
			p := datagram(64, 0)
			var v packet.ICRC
			v.Set(netip.MustParseAddr("127.0.0.9"), loopB, source.Port()^1, to.Port())
			v.Put(p)
			return p
		}(), 0, 1, 0},
		{"short", make([]byte, packet.BTHSize), 0, 0, 1},
		{"odd length", datagram(65, 0), 0, 0, 1},
		{"longest", datagram(packet.MaxSize-packet.BTHSize, 0), 1, 0, 0},
		{"too long", datagram(packet.MaxSize-packet.BTHSize+4, 0), 0, 0, 1},
		{"much too long", make([]byte, 60_000), 0, 0, 1},
	} {
		testutil.Value(from.WriteToUDPAddrPort(tt.data, to))(t)
		testutil.MustTrue(t, readable(t, c, 10_000), "%s: nothing arrived", tt.name)
		n := len(recv(t, c))
		bad, malformed = bad+uint64(tt.badICRC), malformed+uint64(tt.m)
		testutil.MustTrue(t, n == tt.arrives && c.stats.BadICRC.Load() == bad &&
			c.stats.Malformed.Load() == malformed,
			"%s: %d packets, %d of %d wrong ICRCs, %d of %d malformed", tt.name, n,
			c.stats.BadICRC.Load(), bad, c.stats.Malformed.Load(), malformed)
	}
	// The filter finds no QPN, or no attribute.
	testutil.Value(from.WriteToUDPAddrPort(nil, to))(t)
	testutil.Value(from.WriteToUDPAddrPort([]byte{7: CMQPN, 15: 0}, to))(t)
	testutil.True(t, !readable(t, b[1], 0), "short datagrams arrive")
	// The sending socket takes nothing.
	for _, port := range c.port[:1] {
		testutil.Value(from.WriteToUDPAddrPort(datagram(0, 0), netip.AddrPortFrom(loopB, port)))(t)
		var one [1]byte
		_, _, err := unix.Recvfrom(c.sender[ip4], one[:], unix.MSG_DONTWAIT)
		testutil.True(t, err == unix.EAGAIN, "the sender received: %v", err)
	}
}

// A receiver that does not keep up loses packets, and counts them.
func TestUDPOverflow(t *testing.T) {
	a, b := udpPair(t, 1)
	c := b[0].(*udpConn)
	for _, opt := range []int{unix.SO_RCVBUF, unix.SO_RCVBUFFORCE} {
		_ = unix.SetsockoptInt(c.receiver[ip4], unix.SOL_SOCKET, opt, 16<<10)
	}
	p := &Path{Local: loopA, Remote: loopB}
	const n = 100
	for i := range n {
		send(t, a[0], p, 5, uint32(i), 4096)
	}
	a[0].Flush()
	got := 0
	for readable(t, c, 0) {
		got += len(recv(t, c))
	}
	send(t, a[0], p, 5, n, 0) // brings the counter
	a[0].Flush()
	got += len(recvAll(t, c, 1))
	if lost := int(c.stats.Overflows.Load()); lost == 0 || got+lost != n+1 {
		t.Errorf("%d arrived, %d lost", got, lost)
	}
}

// A socket that takes no more: Alloc returns nil when the batch is full, FD becomes readable when
// the socket takes packets again, and they arrive in order, each once.
func TestUDPBlocked(t *testing.T) {
	a, _ := udpPair(t, 1)
	c := a[0].(*udpConn)
	// A UDP socket on loopback never refuses. A local datagram socket does, with a short queue.
	pair := testutil.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0))(t)
	defer unix.Close(pair[1])
	testutil.Must(t, unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 1))
	unix.Close(c.sender[ip4])
	c.sender[ip4] = pair[0]
	p := &Path{Local: loopA, Remote: loopB}
	testutil.Must(t, c.resolve(p))
	p.route.nameLen, p.route.controls = 0, 0

	const n = 300
	sent, arrived, full := 0, 0, 0
	buf := make([]byte, 64)
	for arrived < n {
		for sent < n {
			if b := c.Alloc(p, packet.BTHSize); b != nil {
				(&packet.BTH{Opcode: packet.SendOnly, QPN: 5, PSN: uint32(sent)}).Put(b)
				sent++
				continue
			}
			full++
			break
		}
		c.Flush()
		testutil.MustTrue(t, c.out.packets.count <= 0 || !readable(t, c, 0),
			"readable while the socket takes nothing")
		for arrived < n {
			k, _, err := unix.Recvfrom(pair[1], buf, unix.MSG_DONTWAIT)
			if err == unix.EAGAIN {
				break
			}
			testutil.Must(t, err)
			psn := binary.BigEndian.Uint32(buf[8:])
			testutil.MustTrue(t, k == packet.BTHSize+packet.ICRCSize && psn == uint32(arrived),
				"packet %d has number %d, %d bytes", arrived, psn, k)
			arrived++
		}
		if c.out.packets.count > 0 {
			testutil.MustTrue(t, readable(t, c, 10_000),
				"not readable when the socket takes packets")
			recv(t, c)
		}
	}
	s := c.Stats()
	testutil.True(t, full != 0 && s.Blocked.Load() != 0 && s.Sent.Load() == n &&
		s.Dropped.Load() == 0, "full %d times, blocked %d, %d sent, %d dropped", full,
		s.Blocked.Load(), s.Sent.Load(), s.Dropped.Load())
}

// The ICRC relies on the header that the system writes: identification 0, do not fragment.
func TestUDPHeader(t *testing.T) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs CAP_NET_RAW to see IP headers: %v", err)
	}
	defer unix.Close(fd)
	port := testutil.FreePort(t)
	n := NewUDP(UDPOptions{Port: port})
	// Without a filter the traffic of other tests fills the socket.
	half := func(at uint32) unix.SockFilter { // of the packet, from the IP header on
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: at}
	}
	same := unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port)}
	otherwise := same
	same.Jt, otherwise.Jf = 2, 1
	testutil.Must(t, attach(fd, unix.SO_ATTACH_FILTER, []unix.SockFilter{
		half(20 + 2), same, half(40 + 2), otherwise, // destination ports over IPv4 and IPv6
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16}, {Code: unix.BPF_RET | unix.BPF_K},
	}))
	testutil.Must(t, unix.Bind(fd, &unix.SockaddrLinklayer{
		Protocol: unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00,
	}))
	c := open(t, n, 1)[0].(*udpConn)
	paths := []*Path{{Local: loopA, Remote: loopB, TOS: ECT0}, {Local: loop6, Remote: loop6}}
	if c.sender[ip6] < 0 {
		paths = paths[:1]
	}
	for _, p := range paths {
		for i := range 20 {
			send(t, c, p, 5, uint32(i), 200)
		}
		c.Flush()
		recvAll(t, c, 20)
		b := make([]byte, 8192)
		for seen := 0; seen < 20; {
			k, err := unix.Read(fd, b)
			testutil.Must(t, err)
			ip, fragment := 40, []byte(nil) // identification, DF and offset
			if family(p.Local) == ip4 {
				ip, fragment = 20, b[4:8]
			}
			if k < ip+8 || binary.BigEndian.Uint16(b[ip:]) != c.port[family(p.Local)] ||
				binary.BigEndian.Uint16(b[ip+2:]) != c.net.port {
				continue
			}
			seen++
			var v packet.ICRC
			v.Set(p.Local, p.Remote, c.port[family(p.Local)], c.net.port)
			if right := v.Check(b[ip+8:k], false); !right ||
				fragment != nil && !bytes.Equal(fragment, []byte{0, 0, 0x40, 0}) {
				t.Fatalf("packet %d: ICRC %v: % x", seen, right, b[:ip])
			}
		}
	}
}

// A timer that was moved away wakes once at the first time, and is armed for the second one then.
func TestTimerMovedAway(t *testing.T) {
	a, _ := udpPair(t, 1)
	d := a[0].(*udpConn).descriptor
	a[0].SetTimer(a[0].Now() + time.Millisecond)
	a[0].SetTimer(a[0].Now() + time.Hour)
	testutil.MustTrue(t, readable(t, a[0], 10_000), "no wake-up")
	recv(t, a[0])
	testutil.True(t, d.want != 0 && d.armed == d.want && !readable(t, a[0], 0),
		"armed for %v, want %v", d.armed, d.want)
}

// Both families get their share of a Recv.
func TestUDPFamilies(t *testing.T) {
	c := open(t, NewUDP(UDPOptions{Port: testutil.FreePort(t)}), 1)[0].(*udpConn)
	if c.sender[ip6] < 0 {
		t.Skip("no IPv6 on this machine")
	}
	for _, p := range []*Path{{Local: loopA, Remote: loopB}, {Local: loop6, Remote: loop6}} {
		for range 2 * maxDatagrams {
			send(t, c, p, 5, 0, 0)
		}
	}
	c.Flush()
	c.in.most = time.Hour
	got := recv(t, c)
	testutil.True(t, len(got) == maxDatagrams && got[0].Local.Addr().Is4() &&
		got[maxDatagrams-1].Local.Addr().Is6(), "%v", got)
}

// A call of Recv has little time. Without any it takes one datagram, and More tells of others.
func TestUDPTime(t *testing.T) {
	c := open(t, NewUDP(UDPOptions{Port: testutil.FreePort(t)}), 1)[0].(*udpConn)
	const n = 5
	for range n {
		send(t, c, &Path{Local: loopA, Remote: loopB}, 5, 0, 0)
	}
	c.Flush()
	c.in.most = 0
	for range n {
		testutil.Equal(t, len(recv(t, c)), 1, "packets")
		testutil.True(t, c.More(), "packets are left")
	}
	testutil.Equal(t, len(recv(t, c)), 0, "packets")
	testutil.True(t, !c.More(), "nothing is left")
}

// Packets to broadcast and multicast addresses have no local address, so they are dropped.
func TestMetadata(t *testing.T) {
	for _, tt := range []struct {
		level, kind int
		data        string
		want        string
	}{
		{unix.IPPROTO_IP, unix.IP_PKTINFO, "01000000 0a000001 0a000001", "10.0.0.1"},
		{unix.IPPROTO_IP, unix.IP_PKTINFO, "01000000 0a000001 0a0000ff", "invalid IP"},
		{unix.IPPROTO_IP, unix.IP_PKTINFO, "01000000 0a000001", "invalid IP"},
		{
			unix.IPPROTO_IPV6, unix.IPV6_PKTINFO,
			"fd000000 00000000 00000000 00000001 01000000", "fd00::1",
		},
		{
			unix.IPPROTO_IPV6, unix.IPV6_PKTINFO,
			"ff020000 00000000 00000000 00000001 01000000", "invalid IP",
		},
	} {
		data := testutil.Value(hex.DecodeString(strings.ReplaceAll(tt.data, " ", "")))(t)
		b := make([]byte, 64)
		in, rest := putControl(b, tt.level, tt.kind, len(data))
		copy(in, data)
		m := readMetadata(b[:len(b)-len(rest)])
		testutil.True(t, m.local.String() == tt.want, "%s: %s, want %s", tt.data, m.local, tt.want)
	}
}

// Nothing is allocated per packet.
func TestUDPAllocations(t *testing.T) {
	a, b := udpPair(t, 1)
	p := &Path{Local: loopA, Remote: loopB}
	round := func() {
		for i := range 16 {
			send(t, a[0], p, 5, uint32(i), 1024)
		}
		a[0].Flush()
		a[0].SetTimer(a[0].Now() + 1e9)
		n := 0
		for range 100 { // loopback delivers before Flush returns
			n += len(recv(t, b[0]))
		}
		if n != 16 { // measured
			t.Fatalf("%d packets", n)
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkUDP sends and receives the packets of some I/Os in one direction: those of 4K reads to
// the host, of 4K writes in the capsule and of 128K. "sockets" makes the same system calls for the
// same packets, but does nothing else: the least cost of a program over these sockets.
func BenchmarkUDP(b *testing.B) {
	for _, bench := range []struct {
		name    string
		ios     int
		packets []int
	}{
		{"4K read", 32, append(slices.Repeat([]int{16 + 4096}, 32), make([]int, 32)...)},
		{"4K write", 32, slices.Repeat([]int{4096, 64}, 32)},
		{"128K", 1, slices.Repeat([]int{16 + 4096}, 32)},
	} {
		for _, segment := range []bool{false, true} {
			for _, bare := range []bool{true, false} {
				what := map[bool]string{true: "sockets", false: "wire"}[bare]
				b.Run(fmt.Sprintf("%s/segments %v/%s", bench.name, segment, what),
					func(b *testing.B) { benchmarkUDP(b, bench.ios, bench.packets, segment, bare) })
			}
		}
	}
}

func benchmarkUDP(b *testing.B, ios int, packets []int, segment, bare bool) {
	from, to := udpPair(b, 1)
	s, r := from[0].(*udpConn), to[0].(*udpConn)
	p := &Path{Local: loopA, Remote: loopB, Segment: segment}
	put := func() {
		for _, size := range packets {
			testutil.MustTrue(b, s.Alloc(p, packet.BTHSize+size) != nil, "full")
		}
	}
	if bare {
		put()
		s.out.seal(nil, 0)
	}
	all := s.out.end
	for b.Loop() {
		if !bare {
			put()
			s.Flush()
			for n := 0; n < len(packets); {
				n += len(testutil.Value(r.Recv())(b))
			}
			continue
		}
		for n := 0; n < s.out.sends.count; {
			sent, _ := s.out.messages.Send(s.sender[ip4], n, s.out.sends.count)
			n += sent
		}
		for n := 0; n < all; {
			got, _, _ := r.in.messages.Recv(r.receiver[ip4], 0, maxDatagrams, recvTime)
			for i := range max(got, 0) {
				size, _ := r.in.messages.Received(i)
				n += size
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*ios), "ns/IO")
}

// Packets of a path that share a send arrive one by one, in order, and have the right ICRC. The
// receiver takes them apart, more than a call of Recv returns.
func TestUDPSegments(t *testing.T) {
	a, b := udpPair(t, 2)
	c := a[0].(*udpConn)
	if !c.out.segment {
		t.Skip("the kernel has no UDP_SEGMENT (Linux 4.18)")
	}
	one := &Path{Local: loopA, Remote: loopB, Segment: true}
	two := &Path{Local: loopA, Remote: loopB, TOS: ECT0, Segment: true}
	single := &Path{Local: loopA, Remote: loopB}
	psn, together := uint32(0), 0
	put := func(p *Path, n int, sizes ...int) {
		for range n {
			for _, size := range sizes {
				send(t, c, p, 5, psn, size)
				psn++
			}
		}
	}
	for _, part := range []struct {
		p        *Path
		n        int
		sizes    []int
		together int
	}{
		{one, 30, []int{1024}, 30},
		{one, 1, []int{512}, 1},        // ends the send
		{one, 3, []int{512}, 3},        // another one
		{one, 1, []int{1024}, 0},       // is longer
		{two, 2, []int{0}, 2},          // another path
		{two, 20, []int{4096}, 20},     // more than a datagram
		{single, 20, []int{1024}, 0},   // a path that does not want it
		{one, 5, []int{64, 60, 4}, 10}, // two by two, for the last is shorter than both
		{one, 150, []int{16}, 150},     // more than the batch
	} {
		put(part.p, part.n, part.sizes...)
		together += part.together
	}
	c.Flush()
	for i, k := range recvAll(t, b[0], int(psn)) {
		testutil.MustTrue(t, binary.BigEndian.Uint32(k.Data[8:]) == uint32(i) && received(k,
			uint32(i), len(k.Data)-packet.BTHSize), "packet %d: %d bytes with PSN %d", i,
			len(k.Data), binary.BigEndian.Uint32(k.Data[8:]))
	}
	s, r := c.Stats(), b[0].Stats()
	testutil.True(t, s.Sent.Load() == uint64(psn) && s.Dropped.Load() == 0 &&
		s.Segmented.Load() >= uint64(together)*9/10 && r.Merged.Load() >= uint64(together)*9/10,
		"%d of %d sent, %d of about %d together, %d merged", s.Sent.Load(), psn, s.Segmented.Load(),
		together, r.Merged.Load())

	// Packets to two engines: all of a send come to the engine of the first.
	for i := range 8 {
		send(t, c, one, uint32(i%2)<<engineShift|7, uint32(i), 256)
	}
	c.Flush()
	if n := len(recvAll(t, b[0], 8)); n != 8 || readable(t, b[1], 0) {
		t.Errorf("%d packets", n)
	}
}

// A system call takes a whole batch of datagrams also after merged ones: a write in its capsule is
// a long packet and a short one, which arrive as one.
func TestMergedBatch(t *testing.T) {
	a, b := udpPair(t, 1)
	from, to := a[0].(*udpConn), b[0].(*udpConn)
	if !from.out.segment {
		t.Skip("the kernel has no UDP_SEGMENT (Linux 4.18)")
	}
	to.in.most = time.Hour
	p := &Path{Local: loopA, Remote: loopB, Segment: true}
	put := func(writes int) (calls int) {
		for range writes {
			send(t, from, p, 5, 0, 4096)
			send(t, from, p, 5, 0, 64)
		}
		from.Flush()
		for left := 2 * writes; left > 0; calls++ {
			testutil.MustTrue(t, to.More() || readable(t, to, 30_000), "%d packets are lost", left)
			left -= len(recv(t, to))
		}
		return calls
	}
	for round := 0; ; round++ { // sometimes the packets arrive late
		put(1)
		calls := put(maxDatagrams)
		if calls == 1 {
			return
		}
		testutil.MustTrue(t, round < 1000, "%d calls for a batch", calls)
	}
}

// A reader that waits for edges misses nothing: packets that arrive while Recv still returns parts
// of earlier datagrams make the descriptor readable again, or More tells.
func TestUDPEdges(t *testing.T) {
	a, b := udpPair(t, 1)
	epoll := testutil.Value(unix.EpollCreate1(unix.EPOLL_CLOEXEC))(t)
	defer unix.Close(epoll)
	testutil.Must(t, unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, b[0].FD(),
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}))
	edge := func() bool {
		return b[0].More() ||
			testutil.Value(unix.EpollWait(epoll, make([]unix.EpollEvent, 1), 0))(t) > 0
	}
	p := &Path{Local: loopA, Remote: loopB, Segment: true}
	put := func(n int) {
		for range n {
			send(t, a[0], p, 5, 0, 16)
		}
		a[0].Flush()
	}
	put(2 * MaxBatch)
	got := 0
	if edge() {
		got += len(recv(t, b[0]))
	}
	put(1)
	for edge() {
		got += len(recv(t, b[0]))
	}
	testutil.True(t, got == 2*MaxBatch+1, "%d packets of %d", got, 2*MaxBatch+1)
}

// A receive takes few packets of one family and leaves many of the other: More tells.
func TestUDPEdgesOfFamilies(t *testing.T) {
	c := open(t, NewUDP(UDPOptions{Port: testutil.FreePort(t)}), 1)[0].(*udpConn)
	if c.sender[ip6] < 0 {
		t.Skip("no IPv6 on this machine")
	}
	epoll := testutil.Value(unix.EpollCreate1(unix.EPOLL_CLOEXEC))(t)
	defer unix.Close(epoll)
	testutil.Must(t, unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, c.FD(),
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}))
	send(t, c, &Path{Local: loopA, Remote: loopB, Segment: true}, 5, 0, 16)
	for range 3 * maxDatagrams {
		send(t, c, &Path{Local: loop6, Remote: loop6}, 5, 0, 16)
	}
	c.Flush()
	got := 0
	for c.More() || testutil.Value(unix.EpollWait(epoll, make([]unix.EpollEvent, 1), 0))(t) > 0 {
		got += len(recv(t, c))
	}
	if want := 3*maxDatagrams + 1; got != want {
		t.Errorf("%d packets of %d", got, want)
	}
}

// A peer may leave out the UDP checksum, also over IPv6, as rxe does.
func TestNoChecksum(t *testing.T) {
	c := open(t, NewUDP(UDPOptions{Port: testutil.FreePort(t)}), 1)[0].(*udpConn)
	if c.sender[ip6] < 0 {
		t.Skip("no IPv6 on this machine")
	}
	testutil.Must(t, unix.SetsockoptInt(c.sender[ip6], unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_TX, 1))
	send(t, c, &Path{Local: loop6, Remote: loop6}, 5, 0, 16)
	c.Flush()
	testutil.Equal(t, len(recv(t, c)), 1, "packets without a UDP checksum")
}

// The name of an interface is asked for once, not for each of its link-local senders.
func TestZones(t *testing.T) {
	i := testutil.Value(net.Interfaces())(t)[0]
	var b inbox
	b.init()
	sender := func(n byte) netip.Addr {
		name := make([]byte, nameSize)
		name[8], name[9], name[23] = 0xfe, 0x80, n
		binary.NativeEndian.PutUint32(name[24:], uint32(i.Index))
		return b.remote(ip6, name).Addr()
	}
	one := sender(1)
	if want := netip.MustParseAddr("fe80::1%" + i.Name); one != want {
		t.Errorf("%v, want %v", one, want)
	}
	n := testing.AllocsPerRun(100, func() {
		testutil.True(t, sender(2) != one && sender(1) == one, "wrong address")
	})
	testutil.True(t, n == 0, "%v allocations for two senders", n)
	for index := range uint32(3 * maxZones) {
		b.zone(index)
	}
	testutil.True(t, len(b.zones) <= maxZones, "%d names", len(b.zones))
}

// The packets of a send have the identifications 0, 1, 2 and so on, and nothing but the length of
// the last one differs, which has none of its length behind it.
func TestUDPRuns(t *testing.T) {
	a, _ := udpPair(t, 1)
	c := a[0].(*udpConn)
	b := &c.out
	b.segment = true
	one := &Path{Local: loopA, Remote: loopB, Segment: true}
	two := &Path{Local: loopA, Remote: loopB, TOS: ECT0, Segment: true}
	single := &Path{Local: loopA, Remote: loopB}
	// The ring wraps around.
	b.packets, b.sends = ring{head: maxQueued - 11}, ring{head: 9}
	for _, k := range []struct {
		p    *Path
		size int
	}{
		{one, 64},
		{one, 64},
		{one, 64},
		{one, 4},
		{one, 4},
		{two, 4},
		{two, 4},
		{single, 4},
		{single, 4},
		{one, 4},
		{one, 4}, // the last one of the ring of packets
		{one, 4},
		{one, 4},
		{one, 8},
		{one, 0},
	} {
		send(t, c, k.p, 5, 0, k.size)
	}
	b.seal(nil, 0)
	var got []int
	at := 0
	for i := range b.sends.count {
		r := b.runs[b.sends.at(i)]
		got = append(got, r.count)
		for id := range r.count {
			k := (r.first + id) % maxQueued
			n := b.lengths[k] + packet.ICRCSize
			v := &b.paths[k].route.icrc
			v.Identify(uint16(id))
			testutil.True(t, v.Check(b.data[at:at+n], false), "send %d: packet %d has a wrong ICRC",
				i, id)
			at += n
		}
	}
	if want := []int{3, 2, 2, 1, 1, 4, 2}; !slices.Equal(got, want) {
		t.Errorf("sends of %v packets, want %v", got, want)
	}
	c.Flush()
	if n := c.stats.Sent.Load(); n != 15 || b.packets.count != 0 || b.sends.count != 0 {
		t.Errorf("%d sent", n)
	}
}

// A way on which the system cannot segment: the path sends single packets from then on.
func TestUDPSegmentsRefused(t *testing.T) {
	a, b := udpPair(t, 1)
	c := a[0].(*udpConn)
	if !c.out.segment {
		t.Skip("the kernel has no UDP_SEGMENT (Linux 4.18)")
	}
	// Without checksums the kernel refuses to segment.
	testutil.Must(t, unix.SetsockoptInt(c.sender[ip4], unix.SOL_SOCKET, unix.SO_NO_CHECK, 1))
	p := &Path{Local: loopA, Remote: loopB, Segment: true}
	for range 2 {
		for i := range 4 {
			send(t, c, p, 5, uint32(i), 64)
		}
		c.Flush()
	}
	got := recvAll(t, b[0], 4)
	testutil.True(t, received(got[3], 3, 64) && !p.Segment && c.stats.Dropped.Load() == 4,
		"segment %v, %d dropped", p.Segment, c.stats.Dropped.Load())
}

// kept is a Sockets for one IPv4 socket.
type kept struct {
	t       *testing.T
	fd      int
	taken   bool // by this process, which has made it or got it
	dropped bool
}

func (k *kept) TakeUDP(at netip.AddrPort) *os.File {
	if k.fd < 0 || k.taken || !at.Addr().Is4() {
		return nil
	}
	k.taken = true
	fd := testutil.Value(unix.FcntlInt(uintptr(k.fd), unix.F_DUPFD_CLOEXEC, 0))(k.t)
	return os.NewFile(uintptr(fd), "kept")
}

func (k *kept) KeepUDP(at netip.AddrPort, fd int) {
	if at.Addr().Is4() {
		k.taken = true
		k.fd = testutil.Value(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))(k.t)
	}
}

func (k *kept) DropUDP(netip.AddrPort) {
	testutil.Must(k.t, unix.Close(k.fd))
	k.fd, k.dropped = -1, true
}

// TestUDPKeptRequests: connection requests wait while they are not taken, also for the next
// process, with another number of engines. Other packets come at once, and where they belong.
func TestUDPKeptRequests(t *testing.T) {
	sockets := &kept{t: t, fd: -1}
	defer func() { testutil.Check(t, unix.Close(sockets.fd)) }()
	opt := UDPOptions{IPv4: loopB, IPv6: addrA6, Port: testutil.FreePort(t), Sockets: sockets}
	from := open(t, NewUDP(UDPOptions{IPv4: loopA, IPv6: addrA6, Port: opt.Port}), 1)
	p := &Path{Local: loopA, Remote: loopB}
	message := func(qpn uint32, attr uint16) {
		b := from[0].Alloc(p, attrOffset+4)
		clear(b)
		h := packet.BTH{Opcode: packet.UDSendOnly, PKey: packet.PKeyDefault, QPN: qpn}
		h.Put(b)
		binary.BigEndian.PutUint16(b[attrOffset:], attr)
		from[0].Flush()
	}
	attrs := func(c Conn, n int) (list []uint16) {
		for _, p := range recvAll(t, c, n) {
			list = append(list, binary.BigEndian.Uint16(p.Data[attrOffset:]))
		}
		return list
	}
	conns, err := NewUDP(opt).Open(3)
	testutil.Must(t, err)
	manager := conns[3].(*udpConn)
	message(CMQPN, attrREQ)
	message(CMQPN, attrREQ+5)
	testutil.Equal(t, fmt.Sprint(attrs(manager, 1)), fmt.Sprint([]uint16{attrREQ + 5}), "others")
	testutil.Must(t, manager.TakeRequests(true))
	testutil.Equal(t, fmt.Sprint(attrs(manager, 1)), fmt.Sprint([]uint16{attrREQ}), "requests")
	testutil.Must(t, manager.TakeRequests(false))
	message(CMQPN, attrREQ)
	for _, c := range conns {
		testutil.Must(t, c.Close())
	}
	message(CMQPN, attrREQ) // nobody is there
	message(CMQPN, attrREQ+5)
	message(1<<engineShift|5, attrREQ)
	sockets.taken = false
	next := open(t, NewUDP(opt), 2)
	message(1<<engineShift|5, attrREQ)
	message(CMQPN, attrREQ+5)
	recvAll(t, next[1], 1)
	attrs(next[2], 1)
	testutil.Must(t, next[2].(*udpConn).TakeRequests(true))
	attrs(next[2], 2) // and nothing that only filled the buffer
	testutil.True(t, !sockets.dropped, "the kept socket was not used")
}

// TestUDPKeptUnusable: a kept socket whose port others cannot share is replaced.
func TestUDPKeptUnusable(t *testing.T) {
	fd := testutil.Value(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))(t)
	sockets := &kept{t: t, fd: fd}
	opt := UDPOptions{IPv4: loopB, IPv6: addrA6, Port: testutil.FreePort(t), Sockets: sockets}
	testutil.Must(t, unix.Bind(fd, address(netip.AddrPortFrom(loopB, opt.Port), 0)))
	open(t, NewUDP(opt), 1)
	testutil.True(t, sockets.dropped && sockets.fd >= 0, "%+v", sockets)
	testutil.Must(t, unix.Close(sockets.fd))
}

// TestUDPKeptAfterError: what a failed Open has kept does not hold the port.
func TestUDPKeptAfterError(t *testing.T) {
	sockets := &kept{t: t, fd: -1}
	opt := UDPOptions{IPv4: loopB, IPv6: loop6, Port: testutil.FreePort(t), Sockets: sockets}
	other, err := net.ListenUDP("udp6", &net.UDPAddr{IP: loop6.AsSlice(), Port: int(opt.Port)})
	if err != nil {
		t.Skipf("no IPv6 on this machine: %v", err)
	}
	n := NewUDP(opt)
	_, err = n.Open(1)
	testutil.True(t, errors.Is(err, unix.EADDRINUSE), "opened: %v", err)
	testutil.Must(t, other.Close())
	open(t, n, 1)
	testutil.Must(t, unix.Close(sockets.fd))
}

// stream counts the events of a socket.
type stream int

func (s *stream) Ready(uint32) { *s++ }

// A Recv takes the events of some sockets, and tells if others have some.
func TestStreamsMore(t *testing.T) {
	s := testutil.Value(NewStreams())(t)
	defer s.Close()
	var sockets [MaxBatch + 1]stream
	for i := range sockets {
		fd := testutil.Value(unix.Eventfd(0, 0))(t)
		defer unix.Close(fd)
		testutil.Must(t, s.Add(fd, &sockets[i])) // it is writable
	}
	testutil.Value(s.Recv())(t)
	testutil.True(t, s.More(), "more sockets are ready")
	testutil.Value(s.Recv())(t)
	testutil.True(t, !s.More(), "all were told")
	for i := range sockets {
		testutil.Equal(t, sockets[i], 1, "events")
	}
}

// FuzzControl: control messages of any form do not panic, and the ones of putControl are read.
func FuzzControl(f *testing.F) {
	f.Add(make([]byte, 64), uint8(4))
	var c udpConn
	p := &Path{Local: loopA, Remote: loopB}
	c.net = &udp{port: Port}
	if err := c.resolve(p); err != nil {
		f.Fatal(err)
	}
	f.Add(p.route.control[:p.route.controls], uint8(12))
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		readMetadata(b)
		buf := make([]byte, 512)
		data, rest := putControl(buf, 7, 9, int(n))
		copy(data, b)
		level, kind, got, tail, ok := controlMessage(buf)
		testutil.True(t, ok && level == 7 && kind == 9 && bytes.Equal(got, data) &&
			len(tail) == len(rest), "%d bytes: %d %d % x, %v", n, level, kind, got, ok)
	})
}
