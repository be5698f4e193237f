package app

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
)

// This file has what is done before the first change of an Apply.

// moveStorage replaces the changes of namespaces that are to have storage which others have now:
// these must lose it first, and may want theirs in turn. Such a namespace is removed and added.
func (tr *transition) moveStorage() {
	var moved []config.Change
	rest := slices.DeleteFunc(slices.Clone(tr.changes), func(c config.Change) bool {
		move := c.Op == config.Modify && c.Kind == config.KindNamespace &&
			slices.ContainsFunc(c.Keys, func(k config.KeyChange) bool {
				return k.Storage && !k.Restart
			}) && tr.takesOver(volumes.Find(tr.next, c.Object))
		if move {
			moved = append(moved, c)
		}
		return move
	})
	tr.changes = nil
	for _, c := range moved {
		tr.changes = append(tr.changes, config.Change{Op: config.Remove, Object: c.Object})
	}
	tr.changes = append(tr.changes, rest...)
	for _, c := range moved {
		tr.changes = append(tr.changes, config.Change{Op: config.Add, Object: c.Object})
	}
}

// check looks for what would fail, and changes nothing. Start has looked at all of the machine.
func (tr *transition) check() (ps config.Problems) {
	for i, sub := range tr.next.Subsystems {
		if memory := tr.s.atStart.Reactors.Memory; memory < 4*sub.MaxTransfer {
			ps = append(ps, tr.next.Problem(fmt.Sprintf("subsystems[%d].max_transfer", i),
				fmt.Sprintf("%v is more than a quarter of reactors.memory, which is still %v",
					config.Size(sub.MaxTransfer), config.Size(memory)),
				"Reduce it, or restart the target."))
		}
	}
	if p, ok := errors.AsType[config.Problem](tr.s.managedLost(tr.next)); ok {
		ps = append(ps, p)
	}
	if tr.s.external || tr.s.config.Load() == nil {
		return ps
	}
	ps = append(append(append(ps, tr.next.Warnings()...), probeHosts(tr.next)...),
		probeKeys(tr.next)...)
	// Without it addresses are only tried.
	machine, _ := tr.s.opts.Network.Read(listeners.Devices(tr.next.Listeners)...)
	probe := addressProbe(tr.next, tr.s.opts.Verbs)
	for i, l := range tr.next.Listeners {
		if tr.adds(config.Object{Kind: config.KindListener, Listener: l.Name}) {
			ps = append(ps, probeListener(tr.next, i, &machine, func(at fabric.Addr) error {
				if tr.s.listeners.Occupy(at) {
					return nil // it is taken over, or closed before
				}
				return probe(at)
			})...)
		}
	}
	for _, n := range volumes.All(tr.next) {
		if tr.adds(n.Name()) && !tr.takesOver(n) {
			ps = append(ps, volumes.ProbeOne(tr.next, n)...)
		}
	}
	return ps
}

// prepare does what can fail and can be done before the first change.
func (tr *transition) prepare() error {
	if err := tr.s.makeManaged(tr.next); err != nil {
		return err
	}
	var adds []*volumes.Namespace
	for _, n := range volumes.All(tr.next) {
		if tr.adds(n.Name()) && !tr.takesOver(n) {
			adds = append(adds, n)
		}
	}
	ps := append(tr.volumes.Await(adds), tr.check()...)
	if ps.Failed() {
		return ps
	}
	for _, p := range ps {
		tr.s.log.Warn(p.Error())
	}
	if ps := tr.volumes.Open(adds); ps.Failed() {
		return ps
	}
	return tr.s.listeners.Prepare(tr.next.Listeners)
}

// adds reports whether the transition adds an object.
func (tr *transition) adds(o config.Object) bool {
	return slices.ContainsFunc(tr.changes, func(c config.Change) bool {
		return c.Op == config.Add && c.Object == o
	})
}

// takesOver reports whether a namespace is to have storage that another one has now and will lose.
func (tr *transition) takesOver(n *volumes.Namespace) bool {
	return slices.ContainsFunc(tr.changes, func(c config.Change) bool {
		return c.Kind == config.KindNamespace && c.Op != config.Add && c.Object != n.Name() &&
			n.Overlaps(tr.s.volumes.Get(c.Object))
	})
}
