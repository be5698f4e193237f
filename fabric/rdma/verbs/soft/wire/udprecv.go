package wire

import (
	"encoding/binary"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

const (
	// maxDatagrams is the largest number of datagrams of one system call. Each may be several
	// packets that the system has merged (UDP_GRO).
	maxDatagrams = 32
	// recvTime is the time after which a call takes no other datagram: copying 32 of 64 KiB, which
	// any peer can send, may take 0.2 ms.
	recvTime = 100 * time.Microsecond
	// datagramSize is the largest length of a UDP datagram, with room for its headers.
	datagramSize = 1 << 16
)

// An inbox is the memory of received datagrams.
//
// The system merges packets with the same source address, ports and length. They may belong to
// several queue pairs, even of several engines, and all come where the first one belongs.
type inbox struct {
	messages  *sys.Datagrams
	iov       [maxDatagrams]sys.Iovec
	names     [maxDatagrams][nameSize]byte
	controls  [maxDatagrams][controlSize]byte
	data      []byte
	socket    [maxDatagrams]int // index in udpConn.receiver
	overflows [4]uint32         // as the sockets count them

	// Datagrams from next to end-1 are still to be taken apart; of the first one, rest is left.
	next, end int
	rest      []byte
	most      time.Duration // recvTime
	meta      metadata
	from      netip.AddrPort

	packets  []Packet
	icrc     packet.ICRC
	sender   netip.AddrPort // of icrc, as well as receiver
	receiver netip.Addr
	zones    map[uint32]string // names of interfaces with link-local senders, by index
}

// maxZones is the largest number of names that an inbox remembers. Interfaces come and go.
const maxZones = 64

func (b *inbox) init() {
	b.messages, b.most = sys.NewDatagrams(maxDatagrams), recvTime
	b.data = make([]byte, maxDatagrams*datagramSize)
	b.packets = make([]Packet, 0, MaxBatch)
	b.zones = make(map[uint32]string)
	for i := range maxDatagrams {
		sys.SetIovec(&b.iov[i], b.datagram(i))
		b.messages.Set(i, b.names[i][:], b.controls[i][:], b.iov[i:i+1])
	}
}

func (b *inbox) datagram(i int) []byte { return b.data[i*datagramSize:][:datagramSize] }

// Recv is Conn.Recv.
func (c *udpConn) Recv() ([]Packet, error) {
	b := &c.in
	b.packets = b.packets[:0]
	var waiting [4]bool // as receiver
	for _, e := range c.ready() {
		if i := slices.Index(c.receiver[:], int(e.Fd)); i >= 0 {
			waiting[i] = true
		}
		if f := slices.Index(c.sender[:], int(e.Fd)); f >= 0 {
			c.out.blocked[f] = false
			if err := c.watch(unix.EPOLL_CTL_DEL, c.sender[f], 0); err != nil {
				return nil, err
			}
		}
	}
	c.more = false
	if b.next == b.end {
		if err := c.receive(waiting); err != nil {
			return nil, err
		}
		waiting = [4]bool{}
	}
	for len(b.packets) < MaxBatch && c.take() {
	}
	c.more = c.more || b.next < b.end || waiting != [4]bool{}
	return b.packets, nil
}

// receive fills the inbox from the sockets that have something. Each gets a fair part.
func (c *udpConn) receive(waiting [4]bool) error {
	b := &c.in
	left := 0
	b.next, b.end = 0, 0
	for _, w := range waiting {
		if w {
			left++
		}
	}
	for i, w := range waiting {
		if !w {
			continue
		}
		most := b.end + (maxDatagrams-b.end)/left
		left--
		n, more, e := b.messages.Recv(c.receiver[i], b.end, most, b.most)
		switch e {
		case 0:
			for range n {
				b.socket[b.end] = i
				b.end++
			}
			c.more = c.more || more
		case unix.EBADF, unix.ENOTSOCK, unix.EFAULT, unix.EINVAL:
			return os.NewSyscallError("recvmmsg", e)
		}
	}
	return nil
}

// take appends the next packet of the inbox if it is right. It reports false if there is none.
func (c *udpConn) take() bool {
	b := &c.in
	if b.next == b.end {
		return false
	}
	if b.rest == nil {
		c.begin(b.next)
	}
	p := b.rest
	if b.meta.segment > 0 && b.meta.segment < len(p) {
		p = p[:b.meta.segment:b.meta.segment]
	}
	if b.rest = b.rest[len(p):]; len(b.rest) == 0 {
		b.rest = nil
		b.next++
	}
	n := len(p) - packet.ICRCSize
	if n < packet.BTHSize || len(p) > frame || n%4 != 0 || !b.meta.local.IsValid() {
		c.stats.Malformed.Add(1)
		return true
	}
	if !b.icrc.Check(p, true) {
		c.stats.BadICRC.Add(1)
		return true
	}
	c.stats.Received.Add(1)
	if b.meta.segment > 0 {
		c.stats.Merged.Add(1)
	}
	b.packets = append(b.packets, Packet{
		Local: netip.AddrPortFrom(b.meta.local, c.net.port), Remote: b.from,
		Data: p[:n:n], CE: b.meta.tos&3 == 3,
	})
	return true
}

// begin starts with a datagram of the inbox.
func (c *udpConn) begin(i int) {
	b, from := &c.in, c.in.socket[i]
	n, control := b.messages.Received(i)
	b.rest = b.datagram(i)[:n]
	b.meta = readMetadata(b.controls[i][:control])
	if m := b.meta.overflows; m != 0 && m != b.overflows[from] {
		c.stats.Overflows.Add(uint64(m - b.overflows[from]))
		b.overflows[from] = m
	}
	b.from = b.remote(from%requests, b.names[i][:])
	if b.meta.local.IsLinkLocalUnicast() { // on the same link
		b.meta.local = b.meta.local.WithZone(b.from.Addr().Zone())
	}
	if b.meta.local.IsValid() && (b.from != b.sender || b.meta.local != b.receiver) {
		b.sender, b.receiver = b.from, b.meta.local
		b.icrc.Set(b.from.Addr(), b.meta.local, b.from.Port(), c.net.port)
	}
}

// remote reads the source address of a datagram: sockaddr_in or sockaddr_in6.
func (b *inbox) remote(f int, name []byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(name[2:])
	if f == ip4 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(name[4:])), port)
	}
	addr := netip.AddrFrom16([16]byte(name[8:]))
	if addr.IsLinkLocalUnicast() {
		addr = addr.WithZone(b.zone(binary.NativeEndian.Uint32(name[24:])))
	}
	return netip.AddrPortFrom(addr, port)
}

// zone returns the name of an interface. The system is asked once: that takes longer than many
// packets, and any neighbor can send them from many link-local addresses.
func (b *inbox) zone(index uint32) string {
	name, ok := b.zones[index]
	if !ok {
		if len(b.zones) == maxZones {
			clear(b.zones)
		}
		name = sys.Zone(index)
		b.zones[index] = name
	}
	return name
}

// metadata is the content of the control messages of a datagram. local is not valid if the packet
// went to a broadcast or multicast address.
type metadata struct {
	local     netip.Addr
	tos       uint8
	segment   int    // length of the packets that were merged, 0 if it is one packet
	overflows uint32 // packets lost so far
}

func readMetadata(b []byte) (m metadata) {
	for {
		level, kind, data, rest, ok := controlMessage(b)
		if !ok {
			return m
		}
		b = rest
		switch {
		case level == unix.IPPROTO_IP && kind == unix.IP_PKTINFO && len(data) >= 12:
			// struct in_pktinfo: interface, local address, destination in the header
			if a := [4]byte(data[8:]); a == [4]byte(data[4:]) {
				m.local = netip.AddrFrom4(a)
			}
		case level == unix.IPPROTO_IP && kind == unix.IP_TOS && len(data) >= 1:
			m.tos = data[0]
		case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= 20:
			// struct in6_pktinfo: destination, interface
			if a := netip.AddrFrom16([16]byte(data)); !a.IsMulticast() {
				m.local = a
			}
		case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_TCLASS && len(data) >= 4:
			m.tos = uint8(binary.NativeEndian.Uint32(data))
		case level == unix.IPPROTO_UDP && kind == unix.UDP_GRO && len(data) >= 4:
			m.segment = int(int32(binary.NativeEndian.Uint32(data)))
		case level == unix.SOL_SOCKET && kind == unix.SO_RXQ_OVFL && len(data) >= 4:
			m.overflows = binary.NativeEndian.Uint32(data)
		}
	}
}
