package target

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// discoveryTransfer is MDTS of discovery controllers in bytes. It is small because anybody may have
// such a controller, and every command takes memory that others need. libnvme reads the log in
// pieces of 4 KiB (NVME_LOG_PAGE_PDU_SIZE). SPDK hosts read the whole log with one command: they
// cannot read one of more than 15 entries.
const discoveryTransfer = 16 << 10

// discoveryTable is what the discovery logs of all hosts are made of, in one generation. It is
// immutable.
type discoveryTable struct {
	DiscoveryConfig
	generation uint64 // starts at 1 (Base section 5.1.12.3.1)
	ports      []Port
	subs       []discoverable // the discovery subsystem, and the others by NQN
}

// DiscoveryConfig is what the discovery service says besides subsystems and ports.
type DiscoveryConfig struct {
	// NQN is a name of its own beside nvme.DiscoveryNQN, which all discovery services have; ""
	// for none.
	NQN string
	// Security is what hosts need to ask it.
	Security Security
	// Referrals are other discovery services.
	Referrals []Referral
}

// Referral is an entry for another discovery service.
type Referral struct {
	Addr fabric.Addr
	NQN  string
	// Hosts are those that are told of it; empty: all.
	Hosts []string
}

// SetDiscovery changes what the discovery service says, and its NQN.
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
	t.setSecurity(cfg.Security)
	t.discoveryChanged()
	return nil
}

// discoveryNQN is the name of the discovery service.
func (t *Target) discoveryNQN() string {
	return cmp.Or(t.discoveryTable.Load().NQN, nvme.DiscoveryNQN)
}

// discoverable is a subsystem and the indices of the ports that serve it, in order.
type discoverable struct {
	*settings
	ports []int
}

// discoveryChanged starts a new generation of the discovery log and notifies the persistent
// discovery controllers that see another one. The caller holds t.mu.
func (t *Target) discoveryChanged() {
	t.discoveryTable.Store(t.newDiscoveryTable(t.Generation() + 1))
	t.discovery.each(func(c *controller) { c.h.post(c.discoveryChanged) })
}

// discoveryChanged raises the event, unless what the host has read last is still so: what others
// are served does not concern it.
func (c *controller) discoveryChanged() {
	if !c.reports(eventDiscovery) || c.events.waiting[eventDiscovery] {
		return
	}
	same := false
	for i, last := range c.discoveryLogs {
		if last == nil {
			continue
		}
		if same = c.discoveryLog(i).generation == last.generation; !same {
			break
		}
	}
	if !same {
		c.raise(eventDiscovery)
	}
}

// newDiscoveryTable makes a table of what there is. The caller holds t.mu.
func (t *Target) newDiscoveryTable(generation uint64) *discoveryTable {
	table := &discoveryTable{
		DiscoveryConfig: t.discoveryConfig, generation: generation, ports: t.ports,
	}
	every, byListener := make([]int, len(t.ports)), map[string][]int{}
	for i, p := range t.ports {
		every[i] = i
		byListener[p.Listener] = append(byListener[p.Listener], i)
	}
	known := map[*settings][]int{} // what the last table has, if the ports are the same
	if last := t.discoveryTable.Load(); last != nil && len(t.ports) > 0 &&
		len(last.ports) == len(t.ports) && &last.ports[0] == &t.ports[0] {
		for _, s := range last.subs {
			known[s.settings] = s.ports
		}
	}
	for _, s := range *t.table.Load() {
		sub := discoverable{s.settings.Load(), every}
		if ports, ok := known[sub.settings]; ok {
			sub.ports = ports
		} else if sub.listeners != nil {
			sub.ports = nil
			for name := range sub.listeners {
				sub.ports = append(sub.ports, byListener[name]...)
			}
			slices.Sort(sub.ports)
		}
		table.subs = append(table.subs, sub)
	}
	slices.SortFunc(table.subs, func(a, b discoverable) int {
		return strings.Compare(a.NQN, b.NQN)
	})
	table.subs = slices.Insert(table.subs, 0, discoverable{t.discovery.settings.Load(), every})
	return table
}

// Generation is the present generation of the discovery log (GENCTR).
func (t *Target) Generation() uint64 { return t.discoveryTable.Load().generation }
