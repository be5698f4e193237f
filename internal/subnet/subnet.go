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

// Owner is what a share counts for: a host that has proven its NQN, all peers that only claim one,
// or those of a network that only claim theirs.
type Owner struct {
	// NQN is empty for a network.
	NQN    string
	Proven bool
	// Network is invalid for an NQN.
	Network netip.Addr
}

// Owners returns the owners of what a host at an address has. A host that has proven its NQN is
// one, wherever it connects from, and network is its zero value. Otherwise it counts for the NQN
// and for its network: a peer takes nothing from a host by claiming its NQN, and gets no more by
// making up many.
func Owners(nqn string, proven bool, addr netip.Addr) (host, network Owner) {
	if !proven {
		network.Network = Of(addr)
	}
	return Owner{NQN: nqn, Proven: proven}, network
}

// Turns returns the one of two Owners that turns are taken by, whose share bounds those of all
// NQNs that a peer makes up.
func Turns(host, network Owner) Owner {
	if host.Proven {
		return host
	}
	return network
}

// shareFactor: an owner may have so many times as much as stays free.
const shareFactor = 2

// Most is what an owner that has used of something may have in all, if free is what nobody has.
func Most[N int | int64](used, free N) N {
	return max(used, shareFactor*(used+max(free, 0))/(shareFactor+1))
}

// Exceeds reports whether an owner that has used of something may not have n more, because of its
// share, if left stays free then. An owner that has nothing gets the first whatever it is.
func Exceeds[N int | int64](used, n, left N) bool { return used > 0 && used+n > shareFactor*left }
