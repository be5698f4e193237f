package cli

import (
	"maps"
	"slices"

	"github.com/nvmf-target/nvmf-target/internal/control"
)

// distribution is how many commands took how many nanoseconds.
type distribution map[int64]uint64

// distributions adds up those of hosts and of namespaces, of all operations together.
func distributions(list []control.Latency) map[string]distribution {
	all := map[string]distribution{}
	for _, l := range list {
		for _, row := range []string{
			"HOST" + l.Host,
			"NAMESPACE" + namespaceName(&control.Namespace{Subsystem: l.Subsystem, NSID: l.NSID}),
		} {
			if all[row] == nil {
				all[row] = distribution{}
			}
			for _, b := range l.Buckets {
				all[row][b.NS] += b.Count
			}
		}
	}
	return all
}

// since is what was counted after old. What was counted anew counts from zero.
func (d distribution) since(old distribution) distribution {
	out := maps.Clone(d)
	for ns, n := range old {
		if n > d[ns] {
			return d
		}
		out[ns] -= n
	}
	return out
}

// quantile is the time in seconds that the part q of the commands did not exceed, 0 if there are
// none.
func (d distribution) quantile(q float64) float64 {
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

// duration is brief, or "-" for none.
func duration(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return brief(seconds)
}
