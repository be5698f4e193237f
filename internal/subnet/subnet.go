// Package subnet says which addresses count as one where peers have shares or take turns.
package subnet

import "net/netip"

// bits is the length of the prefix of an IPv6 address that counts. A network of hosts has a /64
// (RFC 4291 section 2.5.1), in which a machine can take any number of addresses.
const bits = 64

// Of returns what stands for the network of an address: for IPv6 the first address of the /64, in
// the same zone, for IPv4, and for what is mapped into IPv6, the address itself.
func Of(addr netip.Addr) netip.Addr {
	addr = addr.Unmap()
	if !addr.Is6() {
		return addr
	}
	return netip.PrefixFrom(addr.WithZone(""), bits).Masked().Addr().WithZone(addr.Zone())
}

// Text names the network that Of has returned, "2001:db8::/64" or "192.0.2.1".
func Text(network netip.Addr) string {
	if network.Is6() {
		return network.String() + "/64"
	}
	return network.String()
}
