package target

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// catalog is the discovery log of one host in one generation. It is immutable. Entries are encoded
// only when they are read.
type catalog struct {
	generation uint64
	entries    []catalogEntry
}

type catalogEntry struct {
	port Port
	addr netip.Addr
	sub  *subsystem
}

// discoveryPage makes the requested part of log 70h (Base section 5.1.12.3.1). The log may be long,
// so an ordinary goroutine makes it.
func discoveryPage(c *controller, sqe *nvme.SQE) reply {
	off, n := sqe.GetLog().LPO(), sqe.GetLog().Bytes()
	return reply{slow: func() reply {
		cat := c.catalog.Load()
		if cat == nil || cat.generation != c.t.genctr.Load() {
			cat = c.newCatalog()
			c.catalog.Store(cat)
		}
		return cat.read(off, n)
	}}
}

// newCatalog makes the catalog of the current generation. Any goroutine.
func (c *controller) newCatalog() *catalog {
	t := c.t
	t.mu.Lock()
	generation, ports, table := t.genctr.Load(), t.ports, *t.table.Load()
	t.mu.Unlock()
	subs := make([]*subsystem, 0, len(table)+1)
	for _, s := range table {
		if s.allows(c.hostNQN) {
			subs = append(subs, s)
		}
	}
	slices.SortFunc(subs, func(a, b *subsystem) int { return strings.Compare(a.nqn, b.nqn) })
	subs = append([]*subsystem{t.discovery}, subs...)
	list := make([]catalogEntry, 0, len(subs)*len(ports))
	for _, s := range subs {
		for _, p := range ports {
			if addr, ok := c.reachable(p); ok {
				list = append(list, catalogEntry{p, addr, s})
			}
		}
	}
	return &catalog{generation, list}
}

// reachable is the address under which this host reaches a port: for a wildcard the address that
// the host connected to, if the family fits. A port on the wildcard :: takes IPv4 too.
func (c *controller) reachable(p Port) (netip.Addr, bool) {
	addr := p.Addr.Addr().Unmap().WithZone("") // a zone is local to this machine
	if !addr.IsUnspecified() {
		return addr, true
	}
	local := c.info.Local.Addr().Unmap().WithZone("")
	return local, !addr.Is4() || local.Is4()
}

// read encodes at most n bytes of the log from off on.
func (cat *catalog) read(off, n uint64) reply {
	size := uint64(nvme.DiscoveryHeaderSize + len(cat.entries)*nvme.DiscoveryEntrySize)
	if off >= size {
		return reply{st: invalidField}
	}
	// The header is as long as an entry.
	first, skip := off/nvme.DiscoveryEntrySize, off%nvme.DiscoveryEntrySize
	var b []byte
	for i := first; uint64(len(b)) < skip+min(n, size-off); i++ {
		if i == 0 {
			b = nvme.Append(b, &nvme.DiscoveryHeader{
				GENCTR: cat.generation, NUMREC: uint64(len(cat.entries)),
			})
		} else {
			b = cat.entries[i-1].append(b)
		}
	}
	return reply{data: b[skip:]}
}

// append appends the entry as the log has it.
func (e *catalogEntry) append(b []byte) []byte {
	d := &nvme.DiscoveryEntry{
		TRTYPE: e.port.Addr.Transport, ADRFAM: nvme.AddressIPv4, SUBTYPE: nvme.SubsystemNVM,
		TREQ:   nvme.TREQNoFlowControl,
		PORTID: e.port.ID, CNTLID: nvme.CNTLIDDynamic, ASQSZ: MinQueueSize,
	}
	if e.addr.Is6() {
		d.ADRFAM = nvme.AddressIPv6
	}
	if e.sub.discovery {
		d.SUBTYPE = nvme.SubsystemDiscovery
		d.EFLAGS = nvme.EFLAGSPersistent | nvme.EFLAGSDuplicate
	}
	d.SetAddress(e.addr.String(), strconv.Itoa(int(e.port.Addr.Port())))
	switch e.port.Addr.Transport {
	case nvme.TransportRDMA:
		d.SetRDMA(nvme.RDMAProviderAny, 0)
	case nvme.TransportTCP:
		d.SetTCP(nvme.TCPNoSecurity)
	}
	nvme.PutNQN(&d.SUBNQN, e.sub.nqn)
	return nvme.Append(b, d)
}
