package wire

import (
	"encoding/binary"
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

const (
	// frame is the room for a packet with its ICRC.
	frame = packet.MaxSize + packet.ICRCSize
	// maxQueued is the number of packets in a batch.
	maxQueued = 2 * MaxBatch
	// maxShared is the number of packets that share a send (UDP_MAX_SEGMENTS before Linux 6.10).
	maxShared = 64
	// maxSegmented is the largest number of bytes of packets that share a send: they pass the
	// system as one IP packet, and the length in its header has 16 bits.
	maxSegmented = 1<<16 - 1 - 40 - 8 // less the headers of IPv6 and UDP
)

// A batch is the packets to send: two rings, of packets and of the sends that they form. A send is
// one packet, or several with UDP_SEGMENT. Packets lie side by side with their ICRCs, so that a
// send is one piece of memory. The next packet goes to the beginning when the batch is empty.
type batch struct {
	packets  ring
	paths    [maxQueued]*Path
	lengths  [maxQueued]int // without ICRC
	data     []byte
	end      int  // of the last packet in data
	unsealed bool // the last packet has no ICRC yet and belongs to no send

	sends    ring
	runs     [maxQueued]run
	iov      [maxQueued]sys.Iovec
	messages *sys.Datagrams
	controls [maxQueued][controlSize]byte // of sends with UDP_SEGMENT

	blocked [2]bool // by address family: FD waits until the sender takes packets
	segment bool    // the system has UDP_SEGMENT
}

// A run is the packets of a send.
type run struct {
	first, count int
	start, bytes int  // in data
	full         bool // its last packet is short
}

// A ring is count places from head on, modulo maxQueued.
type ring struct{ head, count int }

func (r *ring) at(i int) int { return (r.head + i) % maxQueued }

func (r *ring) add() int { r.count++; return r.at(r.count - 1) }

// drop removes places from the front. An empty ring starts at 0, so that few sends wrap around.
func (r *ring) drop(n int) {
	r.head = r.at(n)
	if r.count -= n; r.count == 0 {
		r.head = 0
	}
}

func (b *batch) init() {
	b.messages = sys.NewDatagrams(maxQueued)
	b.data = make([]byte, maxQueued*frame)
}

// A route is the part of a Path that a udpConn caches.
type route struct {
	conn              *udpConn
	family            int
	name              [nameSize]byte
	control           [controlSize]byte
	nameLen, controls int // bytes used
	icrc              packet.ICRC
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
	zone, err := sys.ZoneIndex(remote)
	if err != nil {
		return err
	}
	r := &p.route
	*r = route{conn: c, family: f}
	r.icrc.Set(local, remote, c.port[f], c.net.port)
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
	b := &c.out
	b.seal(p, n)
	if b.isFull(n) {
		if c.Flush(); b.isFull(n) {
			return nil
		}
	}
	if p.route.conn != c {
		if c.resolve(p) != nil {
			c.stats.Dropped.Add(1)
			return c.scrap[:n]
		}
	}
	i := b.packets.add()
	b.paths[i], b.lengths[i] = p, n
	b.unsealed = true
	b.end += n + packet.ICRCSize
	return b.data[b.end-n-packet.ICRCSize:][:n:n]
}

// isFull reports whether there is no room for a packet of n bytes.
func (b *batch) isFull(n int) bool {
	return b.packets.count == maxQueued || b.end+n+packet.ICRCSize > len(b.data)
}

// seal completes the last packet: it joins the last send or begins another one, which decides its
// identification, and gets its ICRC. next and length are of the packet that follows, if there is
// one. A short packet ends a send of longer ones, unless the one that follows has its length: the
// two go together.
func (b *batch) seal(next *Path, length int) {
	if !b.unsealed {
		return
	}
	b.unsealed = false
	i := b.packets.at(b.packets.count - 1)
	route, n := &b.paths[i].route, b.lengths[i]+packet.ICRCSize
	at := b.sends.at(max(b.sends.count, 1) - 1)
	r := &b.runs[at]
	control := route.control[:route.controls]
	splits := next == b.paths[i] && length == b.lengths[i] && length < b.lengths[r.first]
	if b.sends.count > 0 && !splits && b.joins(r, i, n) {
		if r.count == 1 { // the length of the packets joins the control messages of the path
			data, _ := putControl(b.controls[at][copy(b.controls[at][:], control):],
				unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2)
			binary.NativeEndian.PutUint16(data, uint16(r.bytes))
		}
		control = b.controls[at][:route.controls+unix.CmsgSpace(2)]
		r.full = n < b.lengths[r.first]+packet.ICRCSize
	} else {
		at = b.sends.add()
		r = &b.runs[at]
		*r = run{first: i, start: b.end - n}
	}
	route.icrc.Identify(uint16(r.count))
	route.icrc.Put(b.data[b.end-n : b.end])
	r.count++
	r.bytes += n
	sys.SetIovec(&b.iov[at], b.data[r.start:b.end])
	b.messages.Set(at, route.name[:route.nameLen], control, b.iov[at:at+1])
}

// joins reports whether packet i of n bytes can be sent with a run.
func (b *batch) joins(r *run, i, n int) bool {
	p := b.paths[i]
	return b.segment && p.Segment && p == b.paths[r.first] && !r.full && r.count < maxShared &&
		n <= b.lengths[r.first]+packet.ICRCSize && r.bytes+n <= maxSegmented
}

func (c *udpConn) Flush() {
	b := &c.out
	b.seal(nil, 0)
	for b.sends.count > 0 {
		// One call makes the sends of one family, up to the end of the ring.
		first := b.sends.head
		f := b.family(first)
		if b.blocked[f] {
			return
		}
		end := first + 1
		for end < min(first+b.sends.count, maxQueued) && b.family(end) == f {
			end++
		}
		n, e := b.messages.Send(c.sender[f], first, end)
		switch {
		case e == 0:
			c.sent(n)
		case e == unix.EAGAIN && c.watch(unix.EPOLL_CTL_ADD, c.sender[f], unix.EPOLLOUT) == nil:
			b.blocked[f] = true
			c.stats.Blocked.Add(1)
			return
		default:
			c.dropFirst(e)
		}
	}
}

func (b *batch) family(send int) int { return b.paths[b.runs[send].first].route.family }

// sent removes n sends that the socket has taken.
func (c *udpConn) sent(n int) {
	b := &c.out
	packets := 0
	for i := range n {
		r := &b.runs[b.sends.at(i)]
		packets += r.count
		if r.count > 1 {
			c.stats.Segmented.Add(uint64(r.count))
		}
	}
	c.stats.Sent.Add(uint64(packets))
	b.remove(n, packets)
}

// dropFirst removes a send that fails: no route, too long for the link, a firewall. If the system
// cannot segment on this way, later packets are sent one by one; the ICRCs of these hold for
// segments, so they count as lost.
func (c *udpConn) dropFirst(e syscall.Errno) {
	b := &c.out
	n := b.runs[b.sends.head].count
	if n > 1 && (e == unix.EINVAL || e == unix.EIO || e == unix.EOPNOTSUPP || e == unix.EMSGSIZE) {
		b.paths[b.packets.head].Segment = false
	}
	c.stats.Dropped.Add(uint64(n))
	b.remove(1, n)
}

func (b *batch) remove(sends, packets int) {
	for i := range packets {
		b.paths[b.packets.at(i)] = nil
	}
	b.packets.drop(packets)
	b.sends.drop(sends)
	if b.packets.count == 0 {
		b.end = 0
	}
}
