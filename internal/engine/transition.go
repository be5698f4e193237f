package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
)

// This file changes the running target to match a configuration, see ADR 0023.

// transition is the work of one Apply. Changes are made in the order of config.Diff. The functions
// that undo them are kept until all changes have succeeded.
type transition struct {
	e       *Engine
	next    *config.Config
	changes []config.Change
	volumes *volumes.Change
	undo    []func() error
	commit  []func()
}

func (tr *transition) run() error {
	defer tr.e.Target.Changing()()
	defer tr.e.Listeners.Expect(nil)
	GuardSecrets(tr.next)
	err := tr.prepare()
	for _, c := range tr.changes {
		if err != nil {
			break
		}
		if err = tr.change(c); err != nil {
			err = tr.problem(c, err)
		}
	}
	if err == nil {
		for _, fn := range tr.commit {
			fn()
		}
		tr.e.Target.EnforceKeys() // not before: the required keys may have changed as well
		tr.volumes.Commit()       // which may wait for a cluster
		tr.settle()
		return nil
	}
	errs := []error{err}
	tr.e.Listeners.Expect(nil)
	if before := tr.e.config.Load(); before != nil { // at the start there is none
		tr.e.Listeners.Expect(before.Listeners)
	}
	for _, fn := range slices.Backward(tr.undo) {
		errs = append(errs, fn())
	}
	return errors.Join(append(errs, tr.volumes.Abort())...)
}

// settle waits until no device receives commands of hosts that have lost access.
func (tr *transition) settle() {
	if err := tr.e.await(tr.e.Target.Settled()); err != nil {
		tr.e.Log.Warn("hosts that have lost access may still reach devices", "err", err)
	}
}

// done records how to undo a change of an object or a key.
func (tr *transition) done(what string, undo func() error) {
	tr.undo = append(tr.undo, func() error {
		if err := undo(); err != nil {
			return fmt.Errorf("the change of %s cannot be undone: %w", what, err)
		}
		return nil
	})
}

// problem returns err with the place of the failed change.
func (tr *transition) problem(c config.Change, err error) error {
	if _, ok := errors.AsType[config.Problems](err); ok {
		return err
	}
	if _, ok := errors.AsType[config.Problem](err); ok {
		return err
	}
	return &located{tr.next.Problem(keyOf(tr.next, c.Object), err.Error(), ""), err}
}

// located is an error with its place in the configuration.
type located struct {
	config.Problem
	err error
}

func (e *located) Unwrap() error { return e.err }

// As lets errors.As find the Problem.
func (e *located) As(target any) bool {
	p, ok := target.(*config.Problem)
	if ok {
		*p = e.Problem
	}
	return ok
}

// keyOf returns the key of an object in a configuration, "" if it is missing.
func keyOf(c *config.Config, o config.Object) string {
	list, i := "", -1
	switch o.Kind {
	case config.KindListener:
		list = "listeners"
		i = slices.IndexFunc(c.Listeners,
			func(l config.Listener) bool { return l.Name == o.Listener })
	case config.KindReferral:
		list = "discovery.referrals"
		i = slices.IndexFunc(c.Discovery.Referrals,
			func(r config.Referral) bool { return r.Name() == o.Referral })
	case config.KindHost:
		list = "hosts"
		i = slices.IndexFunc(c.Hosts, func(h config.Host) bool { return h.NQN == o.NQN })
	case config.KindSubsystem:
		list = "subsystems"
		i = slices.IndexFunc(c.Subsystems,
			func(s config.Subsystem) bool { return s.NQN == o.NQN })
	case config.KindNamespace:
		if n := volumes.Find(c, o); n != nil {
			return n.Key
		}
	}
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("%s[%d]", list, i)
}

// change makes one change.
func (tr *transition) change(c config.Change) error {
	switch c.Kind {
	case config.KindHost:
		return tr.changeHost(c)
	case config.KindListener:
		return tr.changeListener(c)
	case config.KindNamespace:
		return tr.changeNamespace(c)
	case config.KindSubsystem:
		return tr.changeSubsystem(c)
	case config.KindReferral:
		return tr.follow(c.Object.String(), tr.e.Listeners.SetDiscovery)
	}
	return tr.modifyFile(c)
}

// moveStorage replaces the changes of namespaces that take over storage from others: these must
// lose it first, and may want other storage in turn. Such a namespace is removed and added.
func (tr *transition) moveStorage() {
	var moved []config.Change
	rest := slices.DeleteFunc(slices.Clone(tr.changes), func(c config.Change) bool {
		move := c.Op == config.Modify && c.Kind == config.KindNamespace &&
			slices.ContainsFunc(c.Keys, func(k lang.KeyChange) bool {
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

// check looks for changes that would fail. Start has checked the whole machine.
func (tr *transition) check() (ps config.Problems) {
	for i, sub := range tr.next.Subsystems {
		if memory := tr.e.AtStart.Reactors.Memory; memory < 4*sub.MaxTransfer {
			ps = append(ps, tr.next.Problem(fmt.Sprintf("subsystems[%d].max_transfer", i),
				fmt.Sprintf("%v is more than a quarter of reactors.memory, which is still %v",
					lang.Size(sub.MaxTransfer), lang.Size(memory)),
				"Reduce it, or restart the target."))
		}
	}
	for _, n := range volumes.All(tr.next) { // several gateways would have the image open
		if slices.Contains(tr.next.Group.ANAGroups, n.ANAGroup) && tr.e.Gates[n.ANAGroup] == nil &&
			slices.ContainsFunc(tr.changes, func(c config.Change) bool {
				return c.Object == n.Name()
			}) {
			ps = append(ps, tr.next.Problem(n.Key, fmt.Sprintf("ANA group %d is shared with "+
				"other gateways only after a restart", n.ANAGroup), "Restart the target."))
		}
	}
	if p, ok := errors.AsType[config.Problem](tr.e.managedLost(tr.next)); ok {
		ps = append(ps, p)
	}
	if tr.e.Open != nil || tr.e.config.Load() == nil {
		return ps
	}
	ps = append(append(append(ps, tr.next.Warnings()...), check.Hosts(tr.next)...),
		check.Keys(tr.next)...)
	// Without it addresses are only tried.
	machine, _ := tr.e.Network.Read(listeners.Devices(tr.next.Listeners)...)
	for i, l := range tr.next.Listeners {
		if tr.adds(config.Object{Kind: config.KindListener, Listener: l.Name}) {
			probe := check.Address(tr.next, i, tr.e.Verbs)
			ps = append(ps, check.Listener(tr.next, i, &machine, func(at fabric.Addr) error {
				if tr.e.Listeners.Occupy(at) {
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

// prepare does everything that can fail and can be done before the first change.
func (tr *transition) prepare() error {
	if err := tr.e.makeManaged(tr.next); err != nil {
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
		tr.e.Log.Warn(p.Error())
	}
	if ps := tr.volumes.Open(adds); ps.Failed() {
		return ps
	}
	return tr.e.Listeners.Prepare(tr.next.Listeners)
}

// adds reports whether the transition adds an object.
func (tr *transition) adds(o config.Object) bool {
	return slices.ContainsFunc(tr.changes, func(c config.Change) bool {
		return c.Op == config.Add && c.Object == o
	})
}

// takesOver reports whether a namespace takes over storage that another one has and will lose.
func (tr *transition) takesOver(n *volumes.Namespace) bool {
	return slices.ContainsFunc(tr.changes, func(c config.Change) bool {
		return c.Kind == config.KindNamespace && c.Op != config.Add && c.Object != n.Name() &&
			n.Overlaps(tr.e.Volumes.Get(c.Object))
	})
}

// modifyFile changes a key outside lists.
func (tr *transition) modifyFile(c config.Change) error {
	done := map[*Setter]bool{}
	for _, k := range c.Keys {
		if k.Restart {
			continue
		}
		setter := tr.e.Settings.Of(k.Key)
		if setter == nil {
			return fmt.Errorf("%s cannot be changed while the target runs", k.Key)
		}
		if done[setter] {
			continue
		}
		done[setter] = true
		if err := tr.follow(k.Key, setter.Set); err != nil {
			return err
		}
	}
	return nil
}

// follow makes the target follow a key or an object of the next configuration.
func (tr *transition) follow(what string, set func(*config.Config) error) error {
	if before := tr.e.config.Load(); before != nil { // at the start there is none
		tr.done(what, func() error { return set(before) })
	}
	return set(tr.next)
}
