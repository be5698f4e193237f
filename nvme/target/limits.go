package target

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// SetHostLimits sets the limits of a host for all subsystems together, whether it is connected or
// not; without any the host has none. Commands that wait look at them at once.
func (t *Target) SetHostLimits(nqn string, l qos.Limits) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shared.Hosts.SetLimits(nqn, l) {
		relink(t.handlers)
	}
}

// Limits lists the limits that there are, in the order of host, subsystem and NSID.
func (t *Target) Limits() []qos.Info {
	var list []qos.Info
	add := func(l *qos.Limiter, of qos.Object) {
		if l != nil {
			list = append(list, qos.Info{Object: of, Limits: *l.Describe()})
		}
	}
	for nqn, l := range t.shared.Hosts.Limiters() {
		add(l, qos.Object{HostNQN: nqn})
	}
	for _, s := range *t.table.Load() {
		add(s.Settings.Load().Limiter, qos.Object{SubNQN: s.NQN})
		for _, ns := range s.Namespaces.Load().List {
			add(ns.Attributes().Limiter, qos.Object{SubNQN: s.NQN, NSID: ns.ID.NSID})
		}
	}
	slices.SortFunc(list, func(a, b qos.Info) int {
		return cmp.Or(strings.Compare(a.HostNQN, b.HostNQN), strings.Compare(a.SubNQN, b.SubNQN),
			cmp.Compare(a.NSID, b.NSID))
	})
	return list
}
