package observed

import (
	"maps"
	"net/netip"
	"slices"
)

// Distribution maps durations in nanoseconds to numbers of commands.
type Distribution map[int64]uint64

// Add adds the commands of a histogram.
func (d Distribution) Add(list []LatencyBucket) {
	for _, b := range list {
		d[b.NS] += b.Count
	}
}

// Quantile returns the time in seconds that the fraction q of the commands did not exceed, 0 if
// there are no commands.
func (d Distribution) Quantile(q float64) float64 {
	total := uint64(0)
	for _, n := range d {
		total += n
	}
	left := uint64(q * float64(total))
	for _, ns := range slices.Sorted(maps.Keys(d)) {
		if d[ns] > left {
			return float64(ns) / 1e9
		}
		left -= d[ns]
	}
	return 0
}

// ConnectionID identifies a connection, as long as ports are not reused.
type ConnectionID struct {
	transport     string
	local, remote netip.AddrPort
}

// ID returns the identification of the connection.
func (c *Connection) ID() ConnectionID { return ConnectionID{c.Transport, c.Local, c.Remote} }
