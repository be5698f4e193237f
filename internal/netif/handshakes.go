package netif

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Handshake is a TCP connection that a peer has begun: this machine has answered the SYN, and the
// peer has not confirmed the answer.
type Handshake struct {
	Local, Remote netip.AddrPort
	// Repeated counts the repetitions of the answer: one after 1 s, two after 3 s.
	Repeated int
}

// Constants and structures of linux/inet_diag.h and net/tcp_states.h.
const (
	synReceived = 3 // TCP_SYN_RECV, which includes TCP_NEW_SYN_RECV
	diagRequest = 56
	diagMessage = 72
)

// mostHandshakes is the maximum result of Handshakes. Anybody can begin more.
const mostHandshakes = 256

// Handshakes lists at most 256 handshakes answered and not complete. It needs no privileges.
func (Machine) Handshakes() (list []Handshake, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		request := make([]byte, diagRequest) // struct inet_diag_req_v2
		request[0], request[1] = family, unix.IPPROTO_TCP
		binary.NativeEndian.PutUint32(request[4:], 1<<synReceived)
		ask := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		ask.AddRawData(request)
		err := ask.ExecuteIter(unix.NETLINK_SOCK_DIAG, 0, func(m []byte) bool {
			if len(m) >= diagMessage {
				list = append(list, handshake(m))
			}
			return len(list) < mostHandshakes
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

// Route returns the interface for packets from one address of this machine to another, by all
// routing rules. Errors are the kernel's: ENETUNREACH without a route, EINVAL for a blackhole.
func (Machine) Route(from, to netip.Addr) (string, error) {
	routes, err := netlink.RouteGetWithOptions(to.Unmap().AsSlice(),
		&netlink.RouteGetOptions{SrcAddr: from.Unmap().AsSlice()})
	if err != nil {
		return "", err
	}
	i, err := net.InterfaceByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", err
	}
	return i.Name, nil
}
