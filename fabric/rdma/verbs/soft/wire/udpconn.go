package wire

import (
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
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
	room             int       // of the smaller receive buffer
	in               inbox
	out              batch
	scrap            [packet.MaxSize]byte // for packets that cannot be sent
}

func newUDPConn(u *udp, start time.Time) (*udpConn, error) {
	c := &udpConn{net: u, start: start, receiver: [2]int{-1, -1}, sender: [2]int{-1, -1}}
	var err error
	if c.descriptor, err = openDescriptor(c.Now); err != nil {
		return nil, err
	}
	c.in.init()
	c.out.init()
	return c, nil
}

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
	// rxe sends no UDP checksums (prepare_udp_hdr in drivers/infiniband/sw/rxe/rxe_net.c). Over
	// IPv6 a socket has to allow that (RFC 6936); the ICRC covers the packets.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1); err != nil {
		return os.NewSyscallError("setsockopt UDP_NO_CHECK6_RX", err)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) // Linux 5.0
	enlarge(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF)
	room, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return os.NewSyscallError("getsockopt SO_RCVBUF", err)
	}
	if c.room == 0 || room < c.room {
		c.room = room
	}
	return c.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN)
}

// openSender prepares the sending socket of an address family. It takes no packets.
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
	if unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0) == nil { // Linux 4.18
		c.out.segment = true
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

// ReceiveBuffer is Conn.ReceiveBuffer.
func (c *udpConn) ReceiveBuffer() int { return c.room }

func (c *udpConn) Now() time.Duration { return time.Since(c.start) + 1 } // never 0

func (c *udpConn) SetTimer(at time.Duration) { c.setTimer(at) }

func (c *udpConn) Stats() *Stats { return &c.stats }

func (c *udpConn) Close() error {
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	for f := range families {
		for _, fd := range []int{c.receiver[f], c.sender[f]} {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
	}
	c.descriptor.close()
	return nil
}
