package wire

import (
	"errors"
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
	net      *udp
	start    time.Time
	stats    Stats
	closed   bool
	receiver [4]int    // sockets, -1 if missing: by address family, then of requests
	sender   [2]int    // by address family
	port     [2]uint16 // of the senders
	room     int       // of the smallest receive buffer
	in       inbox
	out      batch
	scrap    [packet.MaxSize]byte // for packets that cannot be sent
}

func newUDPConn(u *udp, start time.Time) (*udpConn, error) {
	c := &udpConn{net: u, start: start, receiver: [4]int{-1, -1, -1, -1}, sender: [2]int{-1, -1}}
	var err error
	if c.descriptor, err = openDescriptor(c.Now); err != nil {
		return nil, err
	}
	c.in.init()
	c.out.init()
	return c, nil
}

// openReceiver prepares a receiving socket.
func (c *udpConn) openReceiver(i int) error {
	fd, f := c.receiver[i], i%requests
	for _, opt := range families[f].recv {
		if err := unix.SetsockoptInt(fd, families[f].level, opt, 1); err != nil {
			return fmt.Errorf("setsockopt %s %d: %w", families[f].name, opt, err)
		}
	}
	count := 1 // lost packets
	if i >= requests {
		count = 0 // with those of the previous process, and all that onlyRequests drops
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, count); err != nil {
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
	if i >= requests && c.net.sockets != nil {
		return nil // see TakeRequests
	}
	return c.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN)
}

// TakeRequests decides whether Recv returns connection requests. If not, they wait, also for the
// next process. It runs at the same time as no other method.
func (c *udpConn) TakeRequests(on bool) (err error) {
	op := unix.EPOLL_CTL_DEL
	if on {
		op = unix.EPOLL_CTL_ADD
	}
	for _, fd := range c.receiver[requests:] {
		if fd >= 0 {
			err = errors.Join(err, c.watch(op, fd, unix.EPOLLIN))
		}
	}
	return err
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
	nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	if err := attach(fd, unix.SO_ATTACH_FILTER, nothing); err != nil {
		return err
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
	for _, fd := range append(c.receiver[:], c.sender[:]...) {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	c.descriptor.close()
	return nil
}
