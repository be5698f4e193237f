// Package subnet groups addresses that count as one when peers have shares or take turns.
package subnet

import "net/netip"

// bits is the length of the significant prefix of an IPv6 address. A network of hosts has a /64
// (RFC 4291 section 2.5.1), in which a machine can use any number of addresses.
const bits = 64

// Of returns the network of an address. For IPv6 it is the first address of the /64, in the same
// zone. For IPv4, also mapped into IPv6, it is the IPv4 address itself.
func Of(addr netip.Addr) netip.Addr {
	addr = addr.Unmap()
	if !addr.Is6() {
		return addr
	}
	return netip.PrefixFrom(addr.WithZone(""), bits).Masked().Addr().WithZone(addr.Zone())
}

// Text formats a network returned by Of, "2001:db8::/64" or "192.0.2.1".
func Text(network netip.Addr) string {
	if network.Is6() {
		return network.String() + "/64"
	}
	return network.String()
}

// Owner has a share: a host with a proven NQN, or the unproven peers of an NQN or of a network.
type Owner struct {
	// NQN is empty for a network.
	NQN    string
	Proven bool
	// Network is invalid for an NQN.
	Network netip.Addr
}

// Owners returns the owners for a host at an address. A host with a proven NQN is one owner, from
// any address, and network is the zero value. Otherwise both the NQN and the network are owners: a
// peer takes nothing from a host by claiming its NQN, and gets no more by inventing many NQNs.
func Owners(nqn string, proven bool, addr netip.Addr) (host, network Owner) {
	if !proven {
		network.Network = Of(addr)
	}
	return Owner{NQN: nqn, Proven: proven}, network
}

// Turns returns the Owner that takes turns: its share bounds all NQNs that a peer invents.
func Turns(host, network Owner) Owner {
	if host.Proven {
		return host
	}
	return network
}

// shareFactor bounds an owner to this multiple of the free rest.
const shareFactor = 2

// Most returns the amount that an owner with used may have in all, if free is the unused rest.
func Most[N int | int64](used, free N) N {
	return max(used, shareFactor*(used+max(free, 0))/(shareFactor+1))
}

// Exceeds reports whether an owner that has used may not have n more because of its share, if left
// would then be free. An owner that has nothing may have any first amount.
func Exceeds[N int | int64](used, n, left N) bool { return used > 0 && used+n > shareFactor*left }
