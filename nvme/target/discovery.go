package target

import (
	"cmp"
	"fmt"
	"reflect"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// discoveryTransfer is MDTS of discovery controllers in bytes. It is small because anybody may have
// such a controller, and every command takes memory that others need. libnvme reads the log in
// pieces of 4 KiB (NVME_LOG_PAGE_PDU_SIZE). SPDK hosts read the whole log with one command: they
// cannot read one of more than 15 entries.
const discoveryTransfer = 16 << 10

// DiscoveryConfig is the configuration of the discovery service besides subsystems and ports.
type DiscoveryConfig struct {
	// NQN is a name of its own beside nvme.DiscoveryNQN, which all discovery services have; ""
	// for none.
	NQN string
	// Security is the security that it requires of hosts.
	Security subsystems.Security
	// Referrals are other discovery services.
	Referrals []discovery.Referral
}

// SetDiscovery changes the configuration of the discovery service, including its NQN.
func (t *Target) SetDiscovery(cfg DiscoveryConfig) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if (*t.table.Load())[cfg.NQN] != nil {
		return fmt.Errorf("%q is the name of a subsystem already", cfg.NQN)
	}
	if reflect.DeepEqual(cfg, t.discoveryConfig) {
		return nil
	}
	t.discoveryConfig = cfg
	now := *t.discovery.settings.Load()
	now.Security = cfg.Security
	t.discovery.update(&now)
	t.discovery.enforce()
	t.discoveryChanged()
	return nil
}

// Generation is the present generation of the discovery log (GENCTR).
func (t *Target) Generation() uint64 { return t.discoveryTable.Load().Generation }

// discoveryChanged starts a new generation of the discovery log and notifies the persistent
// discovery controllers that see another one. The caller holds t.mu.
func (t *Target) discoveryChanged() {
	t.newDiscoveryTable(t.Generation() + 1)
	t.discovery.each(func(c *controller) { c.h.post(c.discoveryChanged) })
}

// newDiscoveryTable makes the table of a generation. The caller holds t.mu.
func (t *Target) newDiscoveryTable(generation uint64) {
	table := &discovery.Table{
		Generation: generation, NQN: cmp.Or(t.discoveryConfig.NQN, nvme.DiscoveryNQN),
		Ports: t.ports, Referrals: t.discoveryConfig.Referrals,
	}
	var subs []discovery.Subsystem
	for _, s := range *t.table.Load() {
		subs = append(subs, s.settings.Load())
	}
	table.Fill(t.discovery.settings.Load(), subs, t.discoveryTable.Load())
	t.discoveryTable.Store(table)
}

// discoverer is the host of a discovery controller. It is told of subsystems that it could use.
func (c *controller) discoverer() *discovery.Host {
	return &discovery.Host{
		NQN: c.hostNQN, Port: c.info.PortID, Listener: *c.admin.port.listener.Load(),
		Local: c.info.Local.Addr(),
		MayUse: func(s discovery.Subsystem) bool {
			cfg := s.(*subsystems.Settings)
			return cfg.Allows(c.hostNQN) &&
				(cfg.Security&subsystems.SecurityAuth == 0 || c.t.hasKey(c.hostNQN))
		},
	}
}

// discoveryChanged raises the event, unless the host has read a log that has not changed.
func (c *controller) discoveryChanged() {
	switch logs := c.discoveryLogs; {
	case !c.events.Reports(admin.EventDiscovery) || c.events.Waits(admin.EventDiscovery):
	case logs == discovery.Logs{}:
		c.raise(admin.EventDiscovery)
	default:
		c.remakeLogs(logs)
	}
}

// remakeLogs makes the logs again that the host has read, and raises the event if one has changed.
// It takes the place of an earlier call that has not come to its end.
func (c *controller) remakeLogs(logs discovery.Logs) {
	var made []*discovery.Log
	table, host := c.t.discoveryTable.Load(), c.discoverer()
	w := c.admin.hostWork(func() { made = logs.Remake(table, host) })
	c.stopRemaking()
	c.remaking = w
	w.Request(&admin.Waiter{Answered: func() {
		c.h.post(func() {
			if c.remaking != w {
				return
			}
			c.remaking = nil
			for _, l := range made {
				if c.discoveryLogs.Take(l) {
					c.raise(admin.EventDiscovery)
				}
			}
		})
	}})
}

// stopRemaking ends remakeLogs.
func (c *controller) stopRemaking() {
	if c.remaking != nil {
		c.remaking.Leave(nil)
		c.remaking = nil
	}
}

// discoveryPage makes the requested part of log 70h (Base section 5.1.12.3.1). The parts that a
// host reads come from successive logs in c.discoveryLogs, and GENCTR shows it if they differ.
func discoveryPage(c *controller, sqe *nvme.SQE) admin.Reply {
	log, table, host := sqe.GetLog(), c.t.discoveryTable.Load(), c.discoverer()
	local, off, n := log.LSP()&nvme.DiscoveryLocal != 0, log.LPO(), log.Bytes()
	page := func(l *discovery.Log) admin.Reply {
		data := l.Read(off, n)
		if data == nil {
			return admin.Refused
		}
		return admin.Reply{Data: data}
	}
	if l := c.discoveryLogs.Get(table, local); l != nil {
		return page(l)
	}
	if !log.RAE() {
		c.stopRemaking() // the event would be for the log that the host now reads
	}
	return admin.Elsewhere(func() *discovery.Log {
		return discovery.NewLog(table, host, local)
	}, func(l *discovery.Log) admin.Reply {
		c.discoveryLogs.Take(l)
		return page(c.discoveryLogs.Last(local))
	})
}
