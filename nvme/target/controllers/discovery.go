package controllers

import (
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// discoverer is the host of a discovery controller. It is told of subsystems that it could use.
func (c *Controller) discoverer() *discovery.Host {
	return &discovery.Host{
		NQN: c.HostNQN, Port: c.Info.PortID, Listener: *c.Port.Listener.Load(),
		Local: c.Info.Local.Addr(),
		MayUse: func(s discovery.Subsystem) bool {
			cfg := s.(*subsystems.Settings)
			hasKey := c.Target.Auth.Policy(c.HostNQN) != nil
			return cfg.Allows(c.HostNQN) && (cfg.Security&subsystems.SecurityAuth == 0 || hasKey)
		},
	}
}

// DiscoveryChanged raises the event, unless the host has read a log that has not changed.
func (c *Controller) DiscoveryChanged() {
	switch logs := c.DiscoveryLogs; {
	case !c.Events.Reports(admin.EventDiscovery) || c.Events.Waits(admin.EventDiscovery):
	case logs == discovery.Logs{}:
		c.Raise(admin.EventDiscovery)
	default:
		c.remakeLogs(logs)
	}
}

// remakeLogs makes the logs again that the host has read, and raises the event if one has changed.
// It takes the place of an earlier call that has not come to its end.
func (c *Controller) remakeLogs(logs discovery.Logs) {
	var made []*discovery.Log
	table, host := c.Target.Discovery.Load(), c.discoverer()
	w := c.Hooks.Work(func() { made = logs.Remake(table, host) })
	c.StopRemaking()
	c.Remaking = w
	w.Request(&admin.Waiter{Answered: func() {
		c.Reactor.Post(func() {
			if c.Remaking != w {
				return
			}
			c.Remaking = nil
			for _, l := range made {
				if c.DiscoveryLogs.Take(l) {
					c.Raise(admin.EventDiscovery)
				}
			}
		})
	}})
}

// StopRemaking ends remakeLogs.
func (c *Controller) StopRemaking() {
	if c.Remaking != nil {
		c.Remaking.Leave(nil)
		c.Remaking = nil
	}
}

// discoveryPage makes the requested part of log 70h (Base section 5.1.12.3.1). The parts that a
// host reads come from successive logs in c.DiscoveryLogs, and GENCTR shows it if they differ.
func discoveryPage(c *Controller, sqe *nvme.SQE) admin.Reply {
	log, table, host := sqe.GetLog(), c.Target.Discovery.Load(), c.discoverer()
	local, off, n := log.LSP()&nvme.DiscoveryLocal != 0, log.LPO(), log.Bytes()
	page := func(l *discovery.Log) admin.Reply {
		data := l.Read(off, n)
		if data == nil {
			return admin.Refused
		}
		return admin.Reply{Data: data}
	}
	if l := c.DiscoveryLogs.Get(table, local); l != nil {
		return page(l)
	}
	if !log.RAE() {
		c.StopRemaking() // the event would be for the log that the host reads now
	}
	return admin.Elsewhere(func() *discovery.Log {
		return discovery.NewLog(table, host, local)
	}, func(l *discovery.Log) admin.Reply {
		c.DiscoveryLogs.Take(l)
		return page(c.DiscoveryLogs.Last(local))
	})
}
