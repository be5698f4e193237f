package engine

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// This file has the changes of objects, one function for each kind of object.

// changeListener adds, removes or modifies a listener.
func (tr *transition) changeListener(c config.Change) (err error) {
	var undo func() error
	if c.Op == config.Remove {
		undo, err = tr.e.Listeners.Remove(c.Listener)
	} else {
		i := slices.IndexFunc(tr.next.Listeners,
			func(l config.Listener) bool { return l.Name == c.Listener })
		change := tr.e.Listeners.Add
		if c.Op == config.Modify {
			change = tr.e.Listeners.Modify
		}
		undo, err = change(tr.next.Listeners[i])
	}
	if undo != nil {
		tr.done(c.Object.String(), undo)
	}
	return err
}

// changeHost adds, removes or modifies a host.
func (tr *transition) changeHost(c config.Change) error {
	set := func(to *config.Config) error {
		var host config.Host
		known := false
		if to != nil { // at the start there is nothing before
			for _, h := range to.Hosts {
				if h.NQN == c.NQN {
					host, known = h, true
				}
			}
		}
		tr.e.Target.SetHostKnown(c.NQN, known)
		tr.e.Target.SetHostLimits(c.NQN, host.Limits)
		if host.TLSKey == nil && host.OldTLSKey == nil {
			tr.e.tlsKeys.Delete(c.NQN)
		} else {
			tr.e.tlsKeys.Store(c.NQN, &host.Authentication)
		}
		tr.e.Target.SetHostPolicy(c.NQN, host.Policy())
		tr.e.Target.SetHostNetworks(c.NQN, host.Networks)
		return nil
	}
	before := tr.e.config.Load()
	tr.done(c.Object.String(), func() error { return set(before) })
	return set(tr.next)
}

// subsystem returns the configuration of a subsystem, without namespaces.
func (e *Engine) subsystem(c *config.Config, nqn string) subsystems.Config {
	i := slices.IndexFunc(c.Subsystems, func(sub config.Subsystem) bool { return sub.NQN == nqn })
	tc := c.Subsystems[i].Config
	tc.MaxQueueSize = max(tcp.MaxQueueDepth, rdma.DepthLimit) // transports have their own limits
	return tc
}

// changeSubsystem adds, removes or modifies a subsystem.
func (tr *transition) changeSubsystem(c config.Change) (err error) {
	undo := func() error {
		_, err := tr.e.Target.RemoveSubsystem(c.NQN, false) // the file has it
		return err
	}
	switch c.Op {
	case config.Modify:
		return tr.modifySubsystem(c)
	case config.Add:
		err = tr.e.Target.AddSubsystem(tr.e.subsystem(tr.next, c.NQN))
	case config.Remove:
		_, err = tr.e.Target.RemoveSubsystem(c.NQN, true) // its namespaces are gone
		undo = func() error {
			return tr.e.Target.AddSubsystem(tr.e.subsystem(tr.e.config.Load(), c.NQN))
		}
	}
	if err == nil {
		tr.done(c.Object.String(), undo)
	}
	return err
}

// modifySubsystem changes a subsystem. Hosts that it gains, also by requiring less security, come
// last, because namespaces that they must not use may still be there for all.
func (tr *transition) modifySubsystem(c config.Change) error {
	before, after := tr.e.subsystem(tr.e.config.Load(), c.NQN), tr.e.subsystem(tr.next, c.NQN)
	update := func(to subsystems.Config) error {
		_, err := tr.e.Target.UpdateSubsystem(to)
		return err
	}
	tr.done(c.Object.String(), func() error { return update(before) })
	now := after
	now.Security |= before.Security
	switch {
	case before.AllowAnyHost:
	case after.AllowAnyHost:
		now.AllowAnyHost, now.Hosts = false, before.Hosts
	default:
		now.Hosts = slices.DeleteFunc(slices.Clone(after.Hosts),
			func(h string) bool { return !slices.Contains(before.Hosts, h) })
	}
	tr.commit = append(tr.commit, func() {
		if err := update(after); err != nil {
			tr.e.Log.Error("a subsystem does not have all of its hosts", "subsystem", c.NQN, "err",
				err)
		}
	})
	return update(now)
}

// changeNamespace adds, removes or modifies a namespace.
func (tr *transition) changeNamespace(c config.Change) (err error) {
	var undo func() error
	switch c.Op {
	case config.Add:
		undo, err = tr.volumes.Add(c.Object)
	case config.Remove:
		undo, err = tr.volumes.Remove(c.Object)
	case config.Modify:
		undo, err = tr.volumes.Modify(c.Object, c.Keys)
	}
	if undo != nil {
		tr.done(c.Object.String(), undo)
	}
	return err
}
