package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

const (
	// frame is the room for a packet with its ICRC.
	frame = MaxPacket + ICRCSize
	// nameSize is that of sockaddr_in6, controlSize enough for the control messages of a packet.
	nameSize, controlSize = unix.SizeofSockaddrInet6, 128
)

// A udpConn is the sockets of an engine, or of the communication manager.
type udpConn struct {
	*descriptor
	net              *udp
	start            time.Time
	stats            Stats
	closed           bool
	receiver, sender [2]int    // sockets by address family, -1 if missing
	port             [2]uint16 // of the senders
	overflows        [2]uint32 // as the sockets count them

	in       inbox
	packets  []Packet
	icrc     invariant  // of received packets
	zoned    netip.Addr // the last link-local sender
	zonedIdx uint32

	// The batch: count packets from head on, in a ring.
	out         inbox
	paths       [MaxBatch]*Path
	lengths     [MaxBatch]int
	head, count int
	unsealed    bool    // the last packet has no ICRC yet
	blocked     [2]bool // FD waits until the sender takes packets
	scrap       [MaxPacket]byte
}

// An inbox is an array of messages with their memory.
type inbox struct {
	messages *sys.Datagrams
	iov      [MaxBatch]sys.Iovec
	names    [MaxBatch][nameSize]byte
	controls [MaxBatch][controlSize]byte
	data     []byte
}

// A route is the part of a Path that a udpConn caches.
type route struct {
	conn              *udpConn
	family            int
	name              [nameSize]byte
	control           [controlSize]byte
	nameLen, controls int // bytes used
	icrc              invariant
}

func newUDPConn(u *udp, start time.Time) (*udpConn, error) {
	c := &udpConn{net: u, start: start, receiver: [2]int{-1, -1}, sender: [2]int{-1, -1}}
	var err error
	if c.descriptor, err = openDescriptor(c.Now, false); err != nil {
		return nil, err
	}
	c.packets = make([]Packet, 0, MaxBatch)
	for _, b := range []*inbox{&c.in, &c.out} {
		b.messages = sys.NewDatagrams(MaxBatch)
		b.data = make([]byte, MaxBatch*frame)
	}
	for i := range MaxBatch {
		sys.SetIovec(&c.in.iov[i], c.in.frame(i))
		c.in.messages.Set(i, c.in.names[i][:], c.in.controls[i][:], c.in.iov[i:i+1])
	}
	return c, nil
}

func (b *inbox) frame(i int) []byte { return b.data[i*frame : (i+1)*frame] }

// openReceiver prepares the receiving socket of an address family.
func (c *udpConn) openReceiver(f int) error {
	fd := c.receiver[f]
	for _, opt := range families[f].recv {
		if err := unix.SetsockoptInt(fd, families[f].level, opt, 1); err != nil {
			return fmt.Errorf("setsockopt %s %d: %w", families[f].name, opt, err)
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1); err != nil {
		return os.NewSyscallError("setsockopt SO_RXQ_OVFL", err)
	}
	enlarge(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF)
	return c.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN)
}

// openSender prepares the sending socket of an address family. It refuses whatever arrives.
func (c *udpConn) openSender(f int) error {
	fd := c.sender[f]
	name, err := unix.Getsockname(fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	switch n := name.(type) {
	case *unix.SockaddrInet4:
		c.port[f] = uint16(n.Port)
	case *unix.SockaddrInet6:
		c.port[f] = uint16(n.Port)
	}
	nothing := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: 1, Filter: &nothing}); err != nil {
		return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", err)
	}
	enlarge(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF)
	return nil
}

// enlarge asks for a large buffer. A smaller one works as well.
func enlarge(fd, force, opt int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, socketBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, socketBuffer)
	}
}

// Now is Conn.Now.
func (c *udpConn) Now() time.Duration { return time.Since(c.start) + 1 } // never 0

// SetTimer is Conn.SetTimer.
func (c *udpConn) SetTimer(at time.Duration) { c.setTimer(at) }

// Stats is Conn.Stats.
func (c *udpConn) Stats() *Stats { return &c.stats }

// Close is Conn.Close.
func (c *udpConn) Close() error {
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	for f := range families {
		for _, fd := range []int{c.receiver[f], c.sender[f]} {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
	}
	c.descriptor.close()
	return nil
}

// Recv is Conn.Recv.
func (c *udpConn) Recv() ([]Packet, error) {
	c.packets = c.packets[:0]
	var waiting [2]bool
	for _, e := range c.ready() {
		for f := range families {
			switch int(e.Fd) {
			case c.receiver[f]:
				waiting[f] = true
			case c.sender[f]:
				c.blocked[f] = false
				if err := c.watch(unix.EPOLL_CTL_DEL, c.sender[f], 0); err != nil {
					return nil, err
				}
			}
		}
	}
	first, end := 0, MaxBatch
	if waiting[ip4] && waiting[ip6] {
		end = MaxBatch / 2
	}
	for f := range families {
		if !waiting[f] {
			continue
		}
		n, e := c.in.messages.Recv(c.receiver[f], first, end)
		switch e {
		case 0:
			for i := first; i < first+n; i++ {
				c.take(f, i)
			}
			first += n
		case unix.EBADF, unix.ENOTSOCK, unix.EFAULT, unix.EINVAL:
			return nil, os.NewSyscallError("recvmmsg", e)
		}
		end = MaxBatch
	}
	return c.packets, nil
}

// take checks a received datagram and appends it to the packets.
func (c *udpConn) take(f, i int) {
	n, control, flags := c.in.messages.Received(i)
	m := c.metadata(f, c.in.controls[i][:control])
	data := c.in.frame(i)
	if m.overflows != c.overflows[f] {
		c.stats.Overflows.Add(uint64(m.overflows - c.overflows[f]))
		c.overflows[f] = m.overflows
	}
	if flags&unix.MSG_TRUNC != 0 || n < BTHSize+ICRCSize || n%4 != 0 || !m.local.IsValid() {
		c.stats.Malformed.Add(1)
		return
	}
	remote := c.remote(f, c.in.names[i][:])
	c.icrc.set(remote.Addr(), m.local, remote.Port(), c.net.port)
	if !c.icrc.check(data[:n], true) {
		c.stats.BadICRC.Add(1)
		return
	}
	c.stats.Received.Add(1)
	c.packets = append(c.packets, Packet{
		Local: netip.AddrPortFrom(m.local, c.net.port), Remote: remote,
		Data: data[: n-ICRCSize : n-ICRCSize], CE: m.tos&3 == 3,
	})
}

// remote reads the source address of a datagram: sockaddr_in or sockaddr_in6.
func (c *udpConn) remote(f int, name []byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(name[2:])
	if f == ip4 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(name[4:])), port)
	}
	addr := netip.AddrFrom16([16]byte(name[8:]))
	if addr.IsLinkLocalUnicast() {
		index := binary.NativeEndian.Uint32(name[24:])
		if c.zonedIdx != index || c.zoned.WithZone("") != addr {
			c.zoned, c.zonedIdx = addr.WithZone(zoneName(index)), index
		}
		addr = c.zoned
	}
	return netip.AddrPortFrom(addr, port)
}

func zoneName(index uint32) string {
	i, err := net.InterfaceByIndex(int(index))
	if err != nil { // it has just gone
		return fmt.Sprint(index)
	}
	return i.Name
}

// metadata is what the control messages of a datagram tell. local is not valid if the packet went
// to a broadcast or multicast address.
type metadata struct {
	local     netip.Addr
	tos       uint8
	overflows uint32 // packets lost so far
}

func (c *udpConn) metadata(f int, b []byte) metadata {
	m := metadata{overflows: c.overflows[f]}
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
		case level == unix.SOL_SOCKET && kind == unix.SO_RXQ_OVFL && len(data) >= 4:
			m.overflows = binary.NativeEndian.Uint32(data)
		}
	}
}

// controlMessage takes the first control message (struct cmsghdr, cmsg(3)) from b.
func controlMessage(b []byte) (level, kind int, data, rest []byte, ok bool) {
	if len(b) < unix.SizeofCmsghdr {
		return 0, 0, nil, nil, false
	}
	var n uint64 // cmsg_len is as large as a pointer
	if unix.SizeofCmsghdr == 16 {
		n = binary.NativeEndian.Uint64(b)
	} else {
		n = uint64(binary.NativeEndian.Uint32(b))
	}
	if n < unix.SizeofCmsghdr || n > uint64(len(b)) {
		return 0, 0, nil, nil, false
	}
	level = int(binary.NativeEndian.Uint32(b[unix.SizeofCmsghdr-8:]))
	kind = int(binary.NativeEndian.Uint32(b[unix.SizeofCmsghdr-4:]))
	data = b[unix.SizeofCmsghdr:n]
	space := unix.CmsgSpace(len(data))
	return level, kind, data, b[min(space, len(b)):], true
}

// putControl writes a control message to b and returns its data and the bytes behind it.
func putControl(b []byte, level, kind, n int) (data, rest []byte) {
	if unix.SizeofCmsghdr == 16 {
		binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(n)))
	} else {
		binary.NativeEndian.PutUint32(b, uint32(unix.CmsgLen(n)))
	}
	binary.NativeEndian.PutUint32(b[unix.SizeofCmsghdr-8:], uint32(level))
	binary.NativeEndian.PutUint32(b[unix.SizeofCmsghdr-4:], uint32(kind))
	return b[unix.SizeofCmsghdr:][:n], b[unix.CmsgSpace(n):]
}

// resolve fills in the route of a path.
func (c *udpConn) resolve(p *Path) error {
	local, remote := p.Local.Unmap(), p.Remote.Unmap()
	f := family(remote)
	switch {
	case !remote.IsValid() || !local.IsValid() || local.IsUnspecified() || family(local) != f:
		return errors.New("no addresses of one family")
	case c.sender[f] < 0:
		return errors.New("no " + families[f].name)
	}
	zone, err := zoneIndex(remote)
	if err != nil {
		return err
	}
	r := &p.route
	*r = route{conn: c, family: f}
	r.icrc.set(local, remote, c.port[f], c.net.port)
	binary.NativeEndian.PutUint16(r.name[:], uint16(families[f].domain))
	binary.BigEndian.PutUint16(r.name[2:], c.net.port)
	var data, rest []byte
	if f == ip4 {
		a, l := remote.As4(), local.As4()
		copy(r.name[4:], a[:])
		r.nameLen = unix.SizeofSockaddrInet4
		data, rest = putControl(r.control[:], unix.IPPROTO_IP, unix.IP_PKTINFO, 12)
		copy(data[4:], l[:]) // ipi_spec_dst
		data, rest = putControl(rest, unix.IPPROTO_IP, unix.IP_TOS, 4)
	} else {
		a, l := remote.As16(), local.As16()
		copy(r.name[8:], a[:])
		binary.NativeEndian.PutUint32(r.name[24:], zone)
		r.nameLen = unix.SizeofSockaddrInet6
		data, rest = putControl(r.control[:], unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, 20)
		copy(data, l[:])
		binary.NativeEndian.PutUint32(data[16:], zone)
		data, rest = putControl(rest, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4)
	}
	binary.NativeEndian.PutUint32(data, uint32(p.TOS))
	r.controls = len(r.control) - len(rest)
	return nil
}

// Alloc is Conn.Alloc.
func (c *udpConn) Alloc(p *Path, n int) []byte {
	c.seal()
	if c.count == MaxBatch {
		if c.Flush(); c.count == MaxBatch {
			return nil
		}
	}
	if p.route.conn != c {
		if c.resolve(p) != nil {
			c.stats.Dropped.Add(1)
			return c.scrap[:n]
		}
	}
	i := (c.head + c.count) % MaxBatch
	c.paths[i], c.lengths[i] = p, n
	c.count++
	c.unsealed = true
	return c.out.frame(i)[:n:n]
}

// seal completes the last packet of the batch.
func (c *udpConn) seal() {
	if !c.unsealed {
		return
	}
	c.unsealed = false
	i := (c.head + c.count - 1) % MaxBatch
	r := &c.paths[i].route
	b := c.out.frame(i)[:c.lengths[i]+ICRCSize]
	r.icrc.put(b)
	sys.SetIovec(&c.out.iov[i], b)
	c.out.messages.Set(i, r.name[:r.nameLen], r.control[:r.controls], c.out.iov[i:i+1])
}

// Flush is Conn.Flush.
func (c *udpConn) Flush() {
	c.seal()
	for c.count > 0 {
		f := c.paths[c.head].route.family
		if c.blocked[f] {
			return
		}
		// One call sends packets of one family, up to the end of the ring.
		end := c.head + 1
		for end < min(c.head+c.count, MaxBatch) && c.paths[end].route.family == f {
			end++
		}
		n, e := c.out.messages.Send(c.sender[f], c.head, end)
		switch {
		case e == 0:
			c.stats.Sent.Add(uint64(n))
		case e == unix.EAGAIN && c.watch(unix.EPOLL_CTL_ADD, c.sender[f], unix.EPOLLOUT) == nil:
			c.blocked[f] = true
			c.stats.Blocked.Add(1)
			return
		default: // the first packet cannot be sent: no route, too long for the link, a firewall
			c.stats.Dropped.Add(1)
			n = 1
		}
		c.advance(n)
	}
}

// advance removes n packets from the front of the batch.
func (c *udpConn) advance(n int) {
	for range n {
		c.paths[c.head] = nil
		c.head = (c.head + 1) % MaxBatch
	}
	if c.count -= n; c.count == 0 {
		c.head = 0
	}
}
