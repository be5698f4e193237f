package target

import (
	"cmp"
	"fmt"
	"reflect"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// discoveryTransfer is MDTS of discovery controllers in bytes. It is small because anybody may have
// such a controller, and every command takes memory that others need. libnvme reads the log in
// pieces of 4 KiB (NVME_LOG_PAGE_PDU_SIZE). SPDK hosts read the whole log with one command: they
// cannot read one of more than 15 entries.
const discoveryTransfer = 16 << 10

// SetDiscovery changes the configuration of the discovery service, including its NQN.
func (t *Target) SetDiscovery(cfg subsystems.Discovery) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if (*t.table.Load())[cfg.NQN] != nil {
		return fmt.Errorf("%q is the name of a subsystem already", cfg.NQN)
	}
	if reflect.DeepEqual(cfg, t.discoveryConfig) {
		return nil
	}
	t.discoveryConfig = cfg
	now := *t.discovery.Settings.Load()
	now.Security = cfg.Security
	t.discovery.Update(&now)
	t.discovery.enforce()
	t.discoveryChanged()
	return nil
}

// maxRemotes bounds the ports that a reactor looks at for an entry.
const maxRemotes = 128

// SetGateways changes the ports of other gateways in the discovery log, which has 128 of them at
// most. Their logs may have had this generation already. A target that is not a gateway never calls
// it.
func (t *Target) SetGateways(ports []discovery.Remote, generation uint64) {
	ports = ports[:min(len(ports), maxRemotes)]
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := !t.isGateway || !reflect.DeepEqual(ports, t.remotes)
	t.isGateway, t.remotes = true, ports
	switch {
	case changed:
		t.nextDiscovery(max(t.Generation()+1, generation))
	case generation > t.Generation():
		t.newDiscoveryTable(generation)
	}
}

// Generation is the current generation of the discovery log (GENCTR).
func (t *Target) Generation() uint64 { return t.shared.Discovery.Load().Generation }

// discoveryChanged starts a new generation of the discovery log and notifies the persistent
// discovery controllers that see another one. The caller holds t.mu.
func (t *Target) discoveryChanged() { t.nextDiscovery(t.Generation() + 1) }

func (t *Target) nextDiscovery(generation uint64) {
	t.newDiscoveryTable(generation)
	t.discovery.each(func(c *controller) { c.h.post(c.DiscoveryChanged) })
}

// newDiscoveryTable makes the table of a generation. The caller holds t.mu.
func (t *Target) newDiscoveryTable(generation uint64) {
	table := &discovery.Table{
		Generation: generation, NQN: cmp.Or(t.discoveryConfig.NQN, nvme.DiscoveryNQN),
		Ports: t.ports.List, Referrals: t.discoveryConfig.Referrals,
		Remotes: t.remotes, Shared: t.isGateway,
	}
	var subs []discovery.Subsystem
	for _, s := range *t.table.Load() {
		subs = append(subs, s.Settings.Load())
	}
	table.Fill(t.discovery.Settings.Load(), subs, t.shared.Discovery.Load())
	t.shared.Discovery.Store(table)
}
