package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// This file has the Values of IP addresses, networks and interfaces.

// ListenAddress gives the addresses of the machine that a listener uses. Exactly one field is set.
type ListenAddress struct {
	// IP is a single address. The unspecified address means all addresses, on one socket.
	IP netip.Addr
	// Network means the addresses of the machine in this network.
	Network netip.Prefix
	// Device names a network interface, or an RDMA device for the addresses of its interfaces.
	Device string
}

// Many reports whether a stands for the current addresses of the machine, each with its own socket.
func (a ListenAddress) Many() bool { return !a.IP.IsValid() }

// String returns the address as written in the file.
func (a ListenAddress) String() string {
	switch {
	case a.IP.IsValid():
		return a.IP.String()
	case a.Network.IsValid():
		return a.Network.String()
	}
	return a.Device
}

// WithPort returns the address followed by a port, as in 10.0.0.1:4420 or eth0:4420.
func (a ListenAddress) WithPort(port uint16) string {
	if a.Many() {
		return fmt.Sprintf("%v:%d", a, port)
	}
	return netip.AddrPortFrom(a.IP, port).String()
}

// The longest names of interfaces (IFNAMSIZ) and RDMA devices (IB_DEVICE_NAME_MAX).
const (
	maxInterface = 15
	maxDevice    = 63
)

var (
	// digits matches text meant as an IP address, valid or not.
	digits = regexp.MustCompile(`^[0-9.]*$|:`)
	// device matches the name of an interface, perhaps of a VLAN as in eth0.100. Linux permits
	// more, but storage.example is probably a host name.
	device = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[0-9]+)*$`)
)

// UnmarshalText parses an IP address, a network in CIDR notation, or the name of an interface.
func (a *ListenAddress) UnmarshalText(b []byte) (err error) {
	text := string(b)
	switch {
	case strings.Contains(text, "/"):
		a.Network, err = parseNetwork(text)
	case digits.MatchString(text):
		a.IP, err = netip.ParseAddr(text)
		a.IP = a.IP.Unmap()
	case device.MatchString(text) && len(text) <= maxDevice:
		a.Device = text
	default:
		err = errors.New("neither an address nor a name")
	}
	return err
}

// listenAddress is the Value of a listener's address.
func listenAddress(p *ListenAddress) lang.Value {
	return lang.Unmarshaled(p, "IP address, network or interface",
		hintOr("Write an IPv4 or IPv6 address, 0.0.0.0 or \"::\", a network as in 10.0.0.0/24, or "+
			"the name of a network interface or RDMA device; host names are not resolved."),
		func(a *ListenAddress) (what, hint string) {
			switch {
			case !a.Many():
				return local(a.IP)
			case a.Network.IsValid() && a.Network != a.Network.Masked():
				return fmt.Sprintf("%v is an address in a network", a),
					fmt.Sprintf("Write %v for all addresses in the network, or %v for this one.",
						a.Network.Masked(), a.Network.Addr())
			case a.Network.IsValid() && a.Network.Addr().IsMulticast():
				return local(a.Network.Addr())
			}
			return "", ""
		})
}

// network is a network in CIDR notation.
func network(p *netip.Prefix) lang.Value {
	get := func() string { return p.String() }
	return lang.Parsed("network", nil, get, func(text string) (what, hint string) {
		n, err := parseNetwork(text)
		switch {
		case err != nil:
			return fmt.Sprintf("%q is not a network", lang.Printable(text)),
				"Write an address and the length of its prefix, as in 10.0.0.0/24."
		case n != n.Masked():
			return fmt.Sprintf("%v is an address in a network", n),
				fmt.Sprintf("Write %v for all addresses in the network, or %v/%d for this one.",
					n.Masked(), n.Addr(), n.Addr().BitLen())
		}
		*p = n
		return "", ""
	})
}

// hintOr returns a function for lang.Unmarshaled.
func hintOr(hint string) func(text string) string {
	return func(text string) string { return cmp.Or(portInside(text), hint) }
}

// portInside returns a hint if text is an address followed by a port, else "".
func portInside(text string) string {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return ""
	}
	address, port := strings.Trim(text[:at], "[]"), text[at+1:]
	_, err := strconv.ParseUint(port, 10, 16)
	_, noIP := netip.ParseAddr(address)
	if err != nil || noIP != nil && !device.MatchString(address) {
		return ""
	}
	return fmt.Sprintf("Did you mean address: %s and port: %s?", lang.Printable(address), port)
}

// parseNetwork parses a network. It turns an IPv4-mapped one into a network of IPv4.
func parseNetwork(text string) (netip.Prefix, error) {
	n, err := netip.ParsePrefix(text)
	if err == nil && n.Addr().Is4In6() {
		if n.Bits() < 128-32 {
			return n, errors.New("a part of it is IPv4")
		}
		n = netip.PrefixFrom(n.Addr().Unmap(), n.Bits()-(128-32))
	}
	return n, err
}

// socket is a listening socket, with a name for messages.
type socket struct {
	name      string
	transport nvme.TransportType
	at        ListenAddress
	port      uint16
}

// listens adds a problem at path if s conflicts with an earlier socket. Port 0 never conflicts.
func (v *validator) listens(s socket, path, hint string) {
	if s.port == 0 || s.at == (ListenAddress{}) {
		return
	}
	v.Once("listener", fmt.Sprintf("%v %s", s.transport, s.at.WithPort(s.port)), path, hint)
	for _, o := range v.sockets {
		wide, other := o, s
		if !wide.at.leavesNothing(other.at) {
			wide, other = s, o
		}
		if o.transport != s.transport || o.port != s.port || o.at == s.at ||
			!wide.at.leavesNothing(other.at) {
			continue
		}
		too := ""
		if wide.at.IP.Is6() && !other.at.IP.Is6() {
			too = ", including those of IPv4,"
		}
		v.Add(path, fmt.Sprintf("%s and %s are about the same addresses", s.name, o.name),
			fmt.Sprintf("Delete one of the two: %v has all addresses%s with one socket. "+
				"A network, as in 0.0.0.0/0, leaves %v to the other listener.", wide.at, too,
				other.at))
	}
	v.sockets = append(v.sockets, s)
}

// serves is listens for the address of the key at path, which is not an NVMe listener.
func (v *validator) serves(path string, at netip.AddrPort) {
	v.listens(socket{path, nvme.TransportTCP, ListenAddress{IP: at.Addr()}, at.Port()}, path,
		"Choose another port for one of the two.")
}

// leavesNothing reports whether a is a wildcard that covers all addresses of b. :: covers IPv4.
func (a ListenAddress) leavesNothing(b ListenAddress) bool {
	switch {
	case a.Many() || !a.IP.IsUnspecified():
		return false
	case a.IP.Is6() || b.Device != "":
		return true
	case b.Network.IsValid():
		return b.Network.Addr().Is4()
	}
	return b.IP.Is4()
}

// addrPort is an IP address and a port to listen on; "" means none.
func addrPort(p *netip.AddrPort) lang.Value {
	return lang.Unmarshaled(p, "IP address and a port",
		func(string) string {
			return "Write for instance 127.0.0.1:9500 or \"[::1]:9500\"; host names are not " +
				"resolved."
		},
		func(a *netip.AddrPort) (what, hint string) {
			*a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
			return local(a.Addr())
		})
}

// local reports the problem with an address on which nothing can ever listen.
func local(addr netip.Addr) (what, hint string) {
	switch {
	case addr.Is6() && addr.IsLinkLocalUnicast() && addr.Zone() == "":
		return "a link-local IPv6 address needs its interface",
			fmt.Sprintf("Write \"%s%%eth0\" with the interface's name.", addr)
	case addr.IsMulticast():
		return "a multicast address cannot be listened on", "Write an address of this machine."
	}
	return "", ""
}
