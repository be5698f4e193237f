package doctor

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/rates"
)

// kind is a set of commands counted together. The host "" stands for those not counted separately.
type kind struct {
	host, subsystem string
	nsid            uint32
	operation       string
}

func (k kind) compare(o kind) int {
	return cmp.Or(strings.Compare(k.subsystem, o.subsystem), cmp.Compare(k.nsid, o.nsid),
		strings.Compare(k.operation, o.operation), strings.Compare(k.host, o.host))
}

// at reports whether limits apply to commands of the kind.
func (k kind) at(l limited) bool {
	if l.host != "" {
		return k.host == "" || k.host == l.host
	}
	return k.subsystem == l.subsystem && (l.nsid == 0 || l.nsid == k.nsid)
}

func kindOf(l *observed.Latency) kind { return kind{l.Host, l.Subsystem, l.NSID, l.Operation} }

// difference returns the growth between two samples. If there are many kinds, most had no commands,
// and are left out. After a host has left, its counters may be added to the other hosts, on one
// reactor or on all (observe.LatencyEntries); such a host is compared together with the others.
func difference(before, now []observed.Latency) map[kind]*observed.Spent {
	idle, gone := map[kind]bool{}, map[kind]bool{}
	rates.Each(now, before, kindOf, func(now, old *observed.Latency) {
		of := kindOf(old)
		idle[of] = now != nil && now.IOs == old.IOs
		gone[of] = of.host != "" && (now == nil || now.IOs < old.IOs)
	})
	sum := func(list []observed.Latency) map[kind]*observed.Spent {
		all := map[kind]*observed.Spent{}
		for i := range list {
			of := kindOf(&list[i])
			if idle[of] {
				continue
			}
			if gone[of] {
				of.host = ""
			}
			all[of] = cmp.Or(all[of], new(observed.Spent))
			all[of].Add(&list[i])
		}
		return all
	}
	old, all := sum(before), sum(now)
	for of, s := range all {
		all[of] = s.Since(old[of])
	}
	return all
}

func sorted[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
