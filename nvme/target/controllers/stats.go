package controllers

import (
	"cmp"
	"slices"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// Stats lists the namespaces of subsystems, in the order of subsystem and NSID.
func Stats(of []*Subsystem) (list []observed.Namespace) {
	for _, s := range of {
		for _, ns := range s.Namespaces.Load().List {
			list = append(list, ns.Stats())
		}
	}
	slices.SortStableFunc(list,
		func(a, b observed.Namespace) int { return cmp.Compare(a.Subsystem, b.Subsystem) })
	return list
}

// Limits lists the limits of hosts and of subsystems, in the order of host, subsystem and NSID.
func Limits(hosts map[string]*qos.Limiter, of []*Subsystem) (list []qos.Info) {
	add := func(l *qos.Limiter, of qos.Object) {
		if l != nil {
			list = append(list, qos.Info{Object: of, Limits: *l.Describe()})
		}
	}
	for nqn, l := range hosts {
		add(l, qos.Object{HostNQN: nqn})
	}
	for _, s := range of {
		add(s.Settings.Load().Limiter, qos.Object{SubNQN: s.NQN})
		for _, ns := range s.Namespaces.Load().List {
			add(ns.Attributes().Limiter, qos.Object{SubNQN: s.NQN, NSID: ns.ID.NSID})
		}
	}
	slices.SortFunc(list, func(a, b qos.Info) int {
		return cmp.Or(cmp.Compare(a.HostNQN, b.HostNQN), cmp.Compare(a.SubNQN, b.SubNQN),
			cmp.Compare(a.NSID, b.NSID))
	})
	return list
}
