package netif

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Handshake is a TCP connection that a peer has begun: this machine has answered the SYN, and the
// peer has not confirmed the answer.
type Handshake struct {
	Local, Remote netip.AddrPort
	// Repeated is the number of times that the answer was sent again: once after 1 s, twice after 3
	// s.
	Repeated int
}

// Constants and structures of linux/inet_diag.h and net/tcp_states.h.
const (
	sockDiagByFamily = 20
	synReceived      = 3 // TCP_SYN_RECV, which includes TCP_NEW_SYN_RECV
	diagRequest      = 56
	diagMessage      = 72
)

// mostHandshakes is the maximum result of Handshakes. Anybody can begin more.
const mostHandshakes = 256

// Handshakes lists at most 256 handshakes that this machine has answered and that are not complete.
// It needs no privileges.
func (Machine) Handshakes() (list []Handshake, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		request := make([]byte, diagRequest) // struct inet_diag_req_v2
		request[0], request[1] = family, unix.IPPROTO_TCP
		binary.NativeEndian.PutUint32(request[4:], 1<<synReceived)
		err := ask(unix.NETLINK_SOCK_DIAG, sockDiagByFamily, unix.NLM_F_DUMP, request,
			func(m *syscall.NetlinkMessage) {
				if len(m.Data) >= diagMessage && len(list) < mostHandshakes {
					list = append(list, handshake(m.Data))
				}
			})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// handshake decodes a struct inet_diag_msg.
func handshake(b []byte) Handshake {
	size := 4
	if b[0] == unix.AF_INET6 {
		size = 16
	}
	at := func(port, address int) netip.AddrPort {
		ip, _ := netip.AddrFromSlice(b[address : address+size])
		return netip.AddrPortFrom(ip.Unmap(), binary.BigEndian.Uint16(b[port:]))
	}
	return Handshake{Local: at(4, 8), Remote: at(6, 24), Repeated: int(b[3])}
}

// Route returns the name of the interface through which packets from one address of this machine to
// another leave, following all routing rules. The error is from the kernel: ENETUNREACH without a
// route, EINVAL for a blackhole.
func (Machine) Route(from, to netip.Addr) (string, error) {
	from, to = from.Unmap().WithZone(""), to.Unmap().WithZone("")
	family, bits := byte(unix.AF_INET), byte(32)
	if to.Is6() {
		family, bits = unix.AF_INET6, 128
	}
	request := make([]byte, unix.SizeofRtMsg)
	request[0], request[1], request[2] = family, bits, bits
	for typ, addr := range map[uint16]netip.Addr{unix.RTA_DST: to, unix.RTA_SRC: from} {
		b := addr.AsSlice()
		request = binary.NativeEndian.AppendUint16(request, uint16(unix.SizeofRtAttr+len(b)))
		request = binary.NativeEndian.AppendUint16(request, typ)
		request = append(request, b...)
	}
	index := 0
	err := ask(unix.NETLINK_ROUTE, unix.RTM_GETROUTE, 0, request,
		func(m *syscall.NetlinkMessage) {
			attributes, _ := syscall.ParseNetlinkRouteAttr(m)
			for _, a := range attributes {
				if a.Attr.Type == unix.RTA_OIF && len(a.Value) == 4 {
					index = int(binary.NativeEndian.Uint32(a.Value))
				}
			}
		})
	if err != nil {
		return "", err
	}
	i, err := net.InterfaceByIndex(index)
	if err != nil {
		return "", err
	}
	return i.Name, nil
}

// askTimeout bounds the wait for an answer of the kernel, in seconds.
const askTimeout = 5

// ask sends a request to the kernel and calls answer for each message of the answer (netlink(7)).
func ask(protocol int, typ, flags uint16, request []byte, answer func(*syscall.NetlinkMessage),
) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return os.NewSyscallError("netlink socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
		&unix.Timeval{Sec: askTimeout})
	if err != nil {
		return os.NewSyscallError("netlink SO_RCVTIMEO", err)
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(request)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = append(b, make([]byte, 8)...) // sequence number and port: this socket has one request
	err = unix.Sendto(fd, append(b, request...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err != nil {
		return os.NewSyscallError("netlink send", err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("netlink receive", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for i := range messages {
			switch m := &messages[i]; m.Header.Type {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				if len(m.Data) < 4 {
					return unix.EPROTO
				}
				return unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
			default:
				if answer(m); flags&unix.NLM_F_DUMP == 0 {
					return nil
				}
			}
		}
	}
}
