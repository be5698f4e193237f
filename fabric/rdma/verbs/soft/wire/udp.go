package wire

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/packet"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// UDPOptions narrow the sockets of a UDP network. The zero value is right except for tests.
type UDPOptions struct {
	// IPv4 and IPv6 are the addresses to bind to. The zero value is any address.
	IPv4, IPv6 netip.Addr
	// Port is the port of both ends; 0 is Port.
	Port uint16
	// Sockets keeps the sockets of connection requests for the next process. Then TakeRequests has
	// to be called. nil: they are closed.
	Sockets Sockets
}

// Sockets keeps UDP sockets from the end of a process to the start of the next one. Datagrams that
// arrive in between wait in their receive buffers. Any goroutine calls it.
type Sockets interface {
	// TakeUDP returns the kept socket at this address, which then belongs to the caller, or nil.
	TakeUDP(at netip.AddrPort) *os.File
	// KeepUDP keeps a socket. The caller continues to use the descriptor.
	KeepUDP(at netip.AddrPort, fd int)
	// DropUDP stops keeping a socket. The caller closes it.
	DropUDP(at netip.AddrPort)
}

// udp is the IP network of the process's network namespace.
//
// Every Conn has two sockets per address family. One receives: it is bound to port 4791, which all
// of them share, and a filter on the destination QPN chooses among them. The other sends, from a
// port of its own, so that receivers, which hash ports, spread the load of several engines. The
// communication manager has one more, which receives the connection requests. All are unconnected
// and never fragment: that makes the identification of IPv4 packets 0, which the ICRC needs.
type udp struct {
	bind    [2]netip.Addr // by family
	port    uint16
	sockets Sockets // nil: nothing is kept
}

// Indices of address families.
const (
	ip4 = iota
	ip6
	// requests is added to the index of a receiver that gets connection requests.
	requests
)

var families = [2]struct {
	name               string
	domain, level      int
	mtuDiscover, probe int // IP_MTU_DISCOVER, IP_PMTUDISC_PROBE
	mtu                int // IP_MTU
	recv               [2]int
}{
	{
		"IPv4", unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE,
		unix.IP_MTU,
		[2]int{unix.IP_PKTINFO, unix.IP_RECVTOS},
	},
	{
		"IPv6", unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE,
		unix.IPV6_MTU,
		[2]int{unix.IPV6_RECVPKTINFO, unix.IPV6_RECVTCLASS},
	},
}

// socketBuffer is the wanted size of the buffers of sockets. Without privileges the system allows
// rmem_max and wmem_max.
const socketBuffer = 8 << 20

// NewUDP returns the IP network of the process's network namespace.
func NewUDP(opts UDPOptions) Network {
	u := &udp{
		bind: [2]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}, port: Port,
		sockets: opts.Sockets,
	}
	if opts.IPv4.IsValid() {
		u.bind[ip4] = opts.IPv4
	}
	if opts.IPv6.IsValid() {
		u.bind[ip6] = opts.IPv6
	}
	if opts.Port != 0 {
		u.port = opts.Port
	}
	return u
}

func family(a netip.Addr) int {
	if a.Is4() {
		return ip4
	}
	return ip6
}

// Open is Network.Open. A machine without IPv6 gets sockets for IPv4 only, and vice versa.
func (u *udp) Open(n int) (conns []Conn, err error) {
	if n < 1 || n > MaxEngines {
		return nil, fmt.Errorf("%d engines: 1 to %d", n, MaxEngines)
	}
	list := make([]*udpConn, n+1)
	defer func() {
		if err != nil {
			u.dropRequests(list[n])
			for _, c := range list {
				if c != nil {
					_ = c.Close()
				}
			}
		}
	}()
	start := time.Now()
	for i := range list {
		if list[i], err = newUDPConn(u, start); err != nil {
			return nil, err
		}
		conns = append(conns, list[i])
	}
	opened := false
	for f := range families {
		missing, err := u.openFamily(f, list)
		if err != nil {
			return nil, err
		}
		opened = opened || !missing
	}
	if !opened {
		return nil, errors.New("neither IPv4 nor IPv6 is usable")
	}
	return conns, nil
}

// openFamily opens the sockets of one address family. It reports missing if the machine does not
// have the family, or not the address.
func (u *udp) openFamily(f int, list []*udpConn) (missing bool, err error) {
	manager, i := list[len(list)-1], requests+f
	manager.receiver[i], err = u.requests(f)
	switch {
	case errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL):
		return true, nil
	case errors.Is(err, unix.EADDRINUSE):
		return false, fmt.Errorf("UDP port %d is taken: by another process, or by rdma_rxe in "+
			"this network namespace (see ss -lunp and rdma link): %w", u.port, err)
	case err != nil:
		return false, err
	}
	if err := errors.Join(steer(manager.receiver[i], len(list)-1),
		onlyRequests(manager.receiver[i])); err != nil {
		return false, err
	}
	if err := manager.openReceiver(i); err != nil {
		return false, err
	}
	for _, c := range list {
		if c.receiver[f], err = u.socket(f, u.port, true); err != nil {
			return false, err
		}
		if err := c.openReceiver(f); err != nil {
			return false, err
		}
		if c.sender[f], err = u.socket(f, 0, false); err != nil {
			return false, err
		}
		if err := c.openSender(f); err != nil {
			return false, err
		}
	}
	return false, nil
}

// requests returns the socket of connection requests, the first of the group: the kept one, or a
// new one.
func (u *udp) requests(f int) (fd int, err error) {
	at := netip.AddrPortFrom(u.bind[f], u.port)
	if u.sockets != nil {
		if kept := u.sockets.TakeUDP(at); kept != nil {
			fd, err := u.adopt(f, kept)
			if _ = kept.Close(); err == nil {
				return fd, nil
			}
			u.sockets.DropUDP(at)
		}
	}
	// Another process of the same user could share the port, and its sockets would be counted by
	// the filter. So the port must be free for a socket that does not share it.
	probe, err := u.socket(f, u.port, false)
	if err != nil {
		return -1, err
	}
	_ = unix.Close(probe)
	if fd, err = u.socket(f, u.port, true); err == nil && u.sockets != nil {
		u.sockets.KeepUDP(at, fd)
	}
	return fd, err
}

// dropRequests frees the port for the next Open, after one that has failed.
func (u *udp) dropRequests(manager *udpConn) {
	for f := range families {
		if u.sockets != nil && manager != nil && manager.receiver[requests+f] >= 0 {
			u.sockets.DropUDP(netip.AddrPortFrom(u.bind[f], u.port))
		}
	}
}

// adopt returns the descriptor of a kept socket if others can share its port.
func (u *udp) adopt(f int, kept *os.File) (fd int, err error) {
	probe, err := u.socket(f, u.port, true)
	if err != nil { // it belongs to another user
		return -1, err
	}
	_ = unix.Close(probe)
	if fd, err = unix.FcntlInt(kept.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return -1, err
	}
	return fd, unix.SetNonblock(fd, true)
}

// socket opens a socket that does not fragment, and binds it.
func (u *udp) socket(f int, port uint16, share bool) (fd int, err error) {
	family := &families[f]
	fd, err = unix.Socket(family.domain, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("%s socket: %w", family.name, err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
			fd = -1
		}
	}()
	set := func(level, opt, value int, name string) {
		if err == nil {
			err = os.NewSyscallError("setsockopt "+name, unix.SetsockoptInt(fd, level, opt, value))
		}
	}
	set(family.level, family.mtuDiscover, family.probe, "MTU_DISCOVER")
	if f == ip6 {
		set(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1, "IPV6_V6ONLY")
		set(unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1, "IPV6_DONTFRAG")
	}
	if share {
		set(unix.SOL_SOCKET, unix.SO_REUSEPORT, 1, "SO_REUSEPORT")
	}
	if err != nil {
		return fd, err
	}
	if err = unix.Bind(fd, address(netip.AddrPortFrom(u.bind[f], port), 0)); err != nil {
		err = fmt.Errorf("bind to %s, UDP port %d: %w", u.bind[f], port, err)
	}
	return fd, err
}

// attrOffset is the place of the attribute ID in a packet of the communication manager, after BTH
// and DETH (section 13.4.3), and attrREQ the attribute of a connection request (section 16.7.1).
const (
	attrOffset = packet.BTHSize + packet.DETHSize + 16
	attrREQ    = 0x0010
)

// steer attaches the filter that chooses the socket of the group, in the order of bind(2): the one
// of connection requests, the engines, the communication manager. It sees the payload of the UDP
// datagram. It chooses as Steer does. When only the first socket is left, that gets everything,
// except for its own filter.
func steer(fd, n int) error {
	return attach(fd, unix.SO_ATTACH_REUSEPORT_CBPF, append(filterRequests(0, 0, uint32(n)+1),
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: engineShift},
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: uint32(n)},
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_ADD | unix.BPF_K, K: 1},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_A}))
}

// onlyRequests attaches a filter that lets a socket take nothing but connection requests, so that
// others do not fill its buffer while there is no process. It sees the UDP header as well.
func onlyRequests(fd int) error {
	return attach(fd, unix.SO_ATTACH_FILTER, append(filterRequests(8, datagramSize, 0),
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}))
}

// filterRequests returns the start of a filter, with BTH at an offset. It ends with one value for a
// connection request and with another one for other messages of the communication manager. For
// packets to queue pairs it goes on, with the QPN in the accumulator.
func filterRequests(bth, request, message uint32) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: bth + 4},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: packet.PSNMask},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: CMQPN, Jf: 4},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: bth + attrOffset},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: attrREQ, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: request},
		{Code: unix.BPF_RET | unix.BPF_K, K: message},
	}
}

func attach(fd, opt int, filter []unix.SockFilter) error {
	return os.NewSyscallError("setsockopt: filter", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET,
		opt, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}))
}

func (u *udp) Addrs() ([]netip.Addr, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var list []netip.Addr
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil { // it has just gone
			continue
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			addr, _ := netip.AddrFromSlice(n.IP)
			addr = addr.Unmap()
			if b := u.bind[family(addr)]; !b.IsUnspecified() && b != addr {
				continue
			}
			if addr.IsLinkLocalUnicast() && addr.Is6() {
				addr = addr.WithZone(i.Name)
			}
			list = append(list, addr)
		}
	}
	return list, nil
}

// Route is Network.Route. It asks by a socket that is connected and sends nothing.
func (u *udp) Route(local, remote netip.Addr) (netip.Addr, int, error) {
	f := family(remote)
	if !local.IsValid() || local.IsUnspecified() {
		local = u.bind[f]
	}
	fail := func(err error) (netip.Addr, int, error) {
		return netip.Addr{}, 0, fmt.Errorf("no route from %s to %s: %w", local, remote, err)
	}
	if family(local) != f {
		return fail(unix.EAFNOSUPPORT)
	}
	zone, err := sys.ZoneIndex(remote)
	if err != nil {
		return fail(err)
	}
	fd, err := unix.Socket(families[f].domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = unix.Close(fd) }()
	localZone, err := sys.ZoneIndex(local)
	if err != nil {
		return fail(err)
	}
	if err := unix.Bind(fd, address(netip.AddrPortFrom(local, 0), localZone)); err != nil {
		return fail(err)
	}
	if err := unix.Connect(fd, address(netip.AddrPortFrom(remote, u.port), zone)); err != nil {
		return fail(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return fail(err)
	}
	switch n := name.(type) {
	case *unix.SockaddrInet4:
		local = netip.AddrFrom4(n.Addr)
	case *unix.SockaddrInet6:
		zone := local.Zone()
		local = netip.AddrFrom16(n.Addr)
		if local.IsLinkLocalUnicast() {
			local = local.WithZone(cmp.Or(zone, remote.Zone()))
		}
	}
	link, err := unix.GetsockoptInt(fd, families[f].level, families[f].mtu)
	if err != nil {
		return fail(err)
	}
	mtu, err := PathMTU(link)
	if err != nil {
		return fail(err)
	}
	return local, mtu, nil
}

// address converts an address for the slow calls.
func address(a netip.AddrPort, zone uint32) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16(), ZoneId: zone}
}
