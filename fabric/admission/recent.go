package admission

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"time"
)

// recent remembers the networks with connections that have lately ended without a successful
// Connect command, in memory of constant size. It has two Bloom filters. When the newer one is full
// or older than a period, it replaces the older one. At most about one network in 500 is wrongly
// taken for one that has failed. A network is remembered for at least a period, unless more than
// mostRecent fail.
type recent struct {
	seed  maphash.Seed
	bits  [2][]uint64 // the newer one first
	marks int         // networks in the newer one
	since time.Time   // first use of the newer one
	// overflows: the older one was full before its period ended.
	overflows bool
}

const (
	recentBits   = 1 << 20
	recentHashes = 6 // the best number for the ratio of recentBits to mostRecent is 11
	mostRecent   = 1 << 16
	recentPeriod = time.Minute
)

// places returns where the bits of a network are.
func (r *recent) places(network netip.Addr) (at [recentHashes]uint32) {
	b := network.As16()
	h := maphash.Bytes(r.seed, b[:])
	for i := range at {
		at[i] = (uint32(h) + uint32(i)*uint32(h>>32|1)) % recentBits
	}
	return at
}

// has reports whether the network has failed lately.
func (r *recent) has(network netip.Addr, now time.Time) bool {
	if r.bits[0] == nil || now.Sub(r.since) >= 2*recentPeriod {
		return false
	}
	at := r.places(network)
	return contains(r.bits[0], at) || r.bits[1] != nil && contains(r.bits[1], at)
}

// add records that the network has failed, or tries again after a failure.
func (r *recent) add(network netip.Addr, now time.Time) {
	if r.bits[0] == nil {
		r.seed, r.bits[0], r.since = maphash.MakeSeed(), make([]uint64, recentBits/64), now
	}
	if age := now.Sub(r.since); age >= recentPeriod || r.marks >= mostRecent {
		if age >= 2*recentPeriod { // the newer one is too old as well
			clear(r.bits[0])
		}
		if r.bits[1] == nil {
			r.bits[1] = make([]uint64, recentBits/64)
		}
		r.bits[0], r.bits[1] = r.bits[1], r.bits[0]
		clear(r.bits[0])
		r.marks, r.since, r.overflows = 0, now, age < recentPeriod
	}
	at := r.places(network)
	if contains(r.bits[0], at) {
		return
	}
	r.marks++
	for _, i := range at {
		r.bits[0][i/64] |= 1 << (i % 64)
	}
}

func contains(bits []uint64, at [recentHashes]uint32) bool {
	return !slices.ContainsFunc(at[:], func(i uint32) bool { return bits[i/64]&(1<<(i%64)) == 0 })
}
