package app

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// subsystem returns the configuration of a subsystem, without namespaces.
func (s *Server) subsystem(c *config.Config, nqn string) target.SubsystemConfig {
	i := slices.IndexFunc(c.Subsystems, func(sub config.Subsystem) bool { return sub.NQN == nqn })
	tc := c.Subsystems[i].SubsystemConfig
	tc.MaxQueueSize = max(tcp.MaxQueueDepth, rdma.DepthLimit) // transports know their own
	return tc
}

func (tr *transition) addSubsystem(c config.Change) error {
	err := tr.s.target.AddSubsystem(tr.s.subsystem(tr.next, c.NQN))
	if err == nil {
		tr.done(c.Object.String(), func() error {
			_, err := tr.s.target.RemoveSubsystem(c.NQN, false) // the file has it
			return err
		})
	}
	return err
}

func (tr *transition) removeSubsystem(c config.Change) error {
	_, err := tr.s.target.RemoveSubsystem(c.NQN, true) // its namespaces are gone
	if err == nil {
		tr.done(c.Object.String(), func() error {
			return tr.s.target.AddSubsystem(tr.s.subsystem(tr.s.config.Load(), c.NQN))
		})
	}
	return err
}

// modifySubsystem changes a subsystem. Hosts that it gets, also because it requires less security,
// come last: namespaces that they must not use may still be there for all.
func (tr *transition) modifySubsystem(c config.Change) error {
	before, after := tr.s.subsystem(tr.s.config.Load(), c.NQN), tr.s.subsystem(tr.next, c.NQN)
	update := func(to target.SubsystemConfig) error {
		_, err := tr.s.target.UpdateSubsystem(to)
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
			tr.s.log.Error("a subsystem does not have all of its hosts", "subsystem", c.NQN, "err",
				err)
		}
	})
	return update(now)
}
