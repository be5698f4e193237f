package tcp

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// sockaddr converts an address. A zone is the name or the index of an interface.
func sockaddr(a netip.AddrPort) (sa unix.Sockaddr, family int, err error) {
	addr := a.Addr().Unmap()
	switch {
	case addr.Is4():
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: addr.As4()}, unix.AF_INET, nil
	case !addr.Is6():
		return nil, 0,
			errors.New("no address: give an IPv4 or IPv6 address, or a wildcard (0.0.0.0 or [::])")
	}
	s := &unix.SockaddrInet6{Port: int(a.Port()), Addr: addr.As16()}
	if addr.Zone() == "" && addr.IsLinkLocalUnicast() {
		return nil, 0,
			errors.New("a link-local address needs its interface: write it as address%interface")
	}
	s.ZoneId, err = sys.ZoneIndex(addr)
	return s, unix.AF_INET6, err
}

// addrPort converts back. Link-local addresses get the name of their interface as their zone, and
// IPv4 addresses on a socket of [::] have their IPv4 form.
func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch s := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		a := netip.AddrFrom16(s.Addr).Unmap()
		if s.ZoneId != 0 {
			a = a.WithZone(sys.Zone(s.ZoneId))
		}
		return netip.AddrPortFrom(a, uint16(s.Port))
	}
	return netip.AddrPort{}
}
