package doctor

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/rates"
)

// kind is a set of commands that are counted together. The host is "" for hosts that are not
// counted separately.
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

// spent has the times of commands of a kind.
type spent struct {
	commands uint64
	took     observed.Distribution
	stages   map[string]float64 // seconds, of all commands
}

// most returns the stage that took most of the time, its seconds, and its share.
func (s *spent) most() (stage string, seconds, share float64) {
	sum := 0.0
	for _, name := range sorted(s.stages) {
		sum += s.stages[name]
		if stage == "" || s.stages[name] > seconds {
			stage, seconds = name, s.stages[name]
		}
	}
	return stage, seconds, seconds / max(sum, 1e-9)
}

func (s *spent) add(o *spent) {
	s.commands += o.commands
	for ns, n := range o.took {
		s.took[ns] += n
	}
	for stage, seconds := range o.stages {
		s.stages[stage] += seconds
	}
}

func (s *spent) since(old *spent) *spent {
	if old == nil || old.commands > s.commands { // restarted
		return s
	}
	out := &spent{s.commands - old.commands, rates.Since(old.took, s.took), map[string]float64{}}
	for stage, seconds := range s.stages {
		out.stages[stage] = max(seconds-old.stages[stage], 0)
	}
	return out
}

type spending map[kind]*spent

func kindOf(l *observed.Latency) kind { return kind{l.Host, l.Subsystem, l.NSID, l.Operation} }

func spendings(list []observed.Latency, idle map[kind]bool) spending {
	all := spending{}
	for i := range list {
		l := &list[i]
		if idle[kindOf(l)] {
			continue
		}
		s := &spent{l.IOs, observed.Distribution{}, map[string]float64{}}
		s.took.Add(l.Buckets)
		for _, stage := range l.Stages {
			s.stages[stage.Stage] += stage.MeanSeconds * float64(l.IOs)
		}
		all[kindOf(l)] = s
	}
	return all
}

// idleKinds returns the kinds without commands between two samples. If there are many kinds, most
// are idle.
func idleKinds(before, now []observed.Latency) map[kind]bool {
	idle := map[kind]bool{}
	rates.Each(before, now, kindOf, func(old, now *observed.Latency) {
		if old != nil && old.IOs == now.IOs {
			idle[kindOf(now)] = true
		}
	})
	return idle
}

// toOthers adds a host to the hosts that are not counted separately.
func (s spending) toOthers(of kind) {
	moved := s[of]
	if moved == nil {
		return
	}
	delete(s, of)
	of.host = ""
	if s[of] == nil {
		s[of] = &spent{0, observed.Distribution{}, map[string]float64{}}
	}
	s[of].add(moved)
}

// difference returns the growth between two samples. After a host has left, its counters may be
// added to the other hosts, on one reactor or on all (observe.LatencyEntries); such a host is
// compared together with the other hosts.
func difference(before, now []observed.Latency) spending {
	idle := idleKinds(before, now)
	old, all := spendings(before, idle), spendings(now, idle)
	for of, s := range maps.Clone(old) {
		if of.host != "" && (all[of] == nil || all[of].commands < s.commands) {
			old.toOthers(of)
			all.toOthers(of)
		}
	}
	for of, s := range all {
		all[of] = s.since(old[of])
	}
	return all
}

func sorted[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
