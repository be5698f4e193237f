package config

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// This file has the Values of IP addresses, and of what stands for several of them.

// ListenAddress says which addresses of the machine a listener has. One field is set.
type ListenAddress struct {
	// IP is one address; the unspecified one is all of them, with one socket.
	IP netip.Addr
	// Network has the addresses in it.
	Network netip.Prefix
	// Device is a network interface or an RDMA device, and has the addresses of its interfaces.
	Device string
}

// Many says that the addresses are those that the machine has at present, each of them on its own.
func (a ListenAddress) Many() bool { return !a.IP.IsValid() }

// String is the address as it is written in the file.
func (a ListenAddress) String() string {
	switch {
	case a.IP.IsValid():
		return a.IP.String()
	case a.Network.IsValid():
		return a.Network.String()
	}
	return a.Device
}

// WithPort is the address with a port behind it, as in 10.0.0.1:4420 or eth0:4420.
func (a ListenAddress) WithPort(port uint16) string {
	if a.Many() {
		return fmt.Sprintf("%v:%d", a, port)
	}
	return netip.AddrPortFrom(a.IP, port).String()
}

// The longest names of a network interface (IFNAMSIZ) and of an RDMA device (IB_DEVICE_NAME_MAX),
// less the zero at their end.
const (
	maxInterface = 15
	maxDevice    = 63
)

var (
	// digits is what is meant as an IP address, whether it is one or not.
	digits = regexp.MustCompile(`^[0-9.]*$|:`)
	// device is a name of an interface, maybe of a VLAN as in eth0.100. Linux permits more, but
	// storage.example is rather the name of a host.
	device = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[0-9]+)*$`)
)

// UnmarshalText tells an IP address, a network in CIDR notation, and a name apart.
func (a *ListenAddress) UnmarshalText(b []byte) (err error) {
	text := string(b)
	switch {
	case strings.Contains(text, "/"):
		a.Network, err = netip.ParsePrefix(text)
	case digits.MatchString(text):
		a.IP, err = netip.ParseAddr(text)
	case device.MatchString(text) && len(text) <= maxDevice:
		a.Device = text
	default:
		err = errors.New("neither an address nor a name")
	}
	return err
}

// listenAddress is what a listener has as its address.
func listenAddress(p *ListenAddress) Value {
	return unmarshaled(p, "IP address, network or interface",
		"Write an IPv4 or IPv6 address, 0.0.0.0 or \"::\", a network as in 10.0.0.0/24, or the "+
			"name of a network interface or RDMA device; host names are not resolved.",
		func(a ListenAddress) (what, hint string) {
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
func network(p *netip.Prefix) Value {
	get := func() string { return p.String() }
	return parsed("network", nil, get, func(text string) (what, hint string) {
		n, err := netip.ParsePrefix(text)
		switch {
		case err != nil || n.Addr().Is4In6():
			return fmt.Sprintf("%q is not a network", printable(text)),
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

// listensAt checks what the addresses of listeners have to do with each other.
func (d *decoder) listensAt(c *Config, i int) {
	l, path := &c.Listeners[i], fmt.Sprintf("listeners[%d]", i)
	if l.Port == 0 || l.Address == (ListenAddress{}) {
		return
	}
	if l.Transport == nvme.TransportTCP && len(l.Address.Device) > maxInterface {
		d.add(path+".address", fmt.Sprintf("%q has more than %d characters, as no network "+
			"interface has", l.Address.Device, maxInterface), "Correct it; ip link lists them.")
	}
	d.once("listener", l.Name, path, "Delete one of the two listeners.")
	for _, o := range c.Listeners {
		if o.Transport == l.Transport && o.Port == l.Port && o.Name != l.Name &&
			o.Address.everything(l.Transport, l.Address) {
			d.add(path, fmt.Sprintf("%s and %s are about the same addresses", l.Name, o.Name),
				fmt.Sprintf("Delete one of the two: %v has all addresses with one socket. "+
					"A network, as in 0.0.0.0/0, leaves those to %v that it names.", o.Address,
					l.Address))
		}
	}
}

// everything says that a is a wildcard that leaves nothing, or no IPv4 address, to b.
func (a ListenAddress) everything(t nvme.TransportType, b ListenAddress) bool {
	switch {
	case a.Many() || !a.IP.IsUnspecified():
		return false
	case b.Device != "" || a.IP.Is6() && t == nvme.TransportRDMA: // which has IPv4, too
		return true
	case b.Network.IsValid():
		return b.Network.Addr().Is4() == a.IP.Is4()
	}
	return b.IP.Is4() == a.IP.Is4()
}

// addrPort is an IP address and a port that can be listened on; "" is none.
func addrPort(p *netip.AddrPort) Value {
	return unmarshaled(p, "IP address and a port",
		"Write for instance 127.0.0.1:9500 or \"[::1]:9500\"; host names are not resolved.",
		func(a netip.AddrPort) (what, hint string) { return local(a.Addr()) })
}

// local says why an address cannot be listened on anywhere.
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
