package target

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// catalog is what one host may see: the entries of the discovery log in order, for one generation. Entries are made into bytes only
// when they are read.
type catalog struct {
	generation uint64
	entries    []catalogEntry
}

type catalogEntry struct {
	port Port
	addr netip.Addr
	sub  *subsystem
}

// refresh makes the catalog for the current generation.
func (c *controller) refresh() {
	t := c.t
	if c.catalog.generation == t.genctr.Load() {
		return
	}
	t.mu.Lock()
	generation, ports, table := t.genctr.Load(), t.ports, *t.table.Load()
	t.mu.Unlock()
	subs := make([]*subsystem, 0, len(table)+1)
	for _, s := range table {
		if s.allows(c.hostNQN) {
			subs = append(subs, s)
		}
	}
	slices.SortFunc(subs, func(a, b *subsystem) int {
		if a.nqn < b.nqn {
			return -1
		}
		return 1
	})
	subs = append([]*subsystem{t.discovery}, subs...)
	list := make([]catalogEntry, 0, len(subs)*len(ports))
	for _, s := range subs {
		for _, p := range ports {
			if addr, ok := c.reachable(p); ok {
				list = append(list, catalogEntry{p, addr, s})
			}
		}
	}
	c.catalog = catalog{generation, list}
}

// reachable is the address under which this host reaches a port: of a wildcard the one it came in on, if the family fits. A port on
// the wildcard :: takes IPv4 too.
func (c *controller) reachable(p Port) (netip.Addr, bool) {
	addr := p.Addr.Addr().Unmap()
	if !addr.IsUnspecified() {
		return addr, true
	}
	local := c.info.Local.Addr().Unmap().WithZone("")
	return local, !addr.Is4() || local.Is4()
}

// discoveryLog answers log 70h (Base section 5.1.12.3.1). Only the part that is asked for is made.
func (c *controller) discoveryLog(cm *cmd) {
	c.refresh()
	sqe := cm.req.SQE.GetLog()
	entries := c.catalog.entries
	size := uint64(nvme.DiscoveryHeaderSize + len(entries)*nvme.DiscoveryEntrySize)
	off := sqe.LPO()
	if off >= size {
		c.h.finish(cm, 0, invalidField)
		return
	}
	if !sqe.RAE() {
		c.logRead(nvme.LogDiscovery)
	}
	w := replyWriter{segs: cm.req.Segs}
	end := min(size, off+sqe.Bytes())
	if off < nvme.DiscoveryHeaderSize {
		h := nvme.DiscoveryHeader{GENCTR: c.catalog.generation, NUMREC: uint64(len(entries))}
		w.write(h.Append(nil)[off:min(end, nvme.DiscoveryHeaderSize)])
		off = nvme.DiscoveryHeaderSize
	}
	for off < end {
		i, skip := (off-nvme.DiscoveryHeaderSize)/nvme.DiscoveryEntrySize, (off-nvme.DiscoveryHeaderSize)%nvme.DiscoveryEntrySize
		n := min(nvme.DiscoveryEntrySize-skip, end-off)
		w.write(c.entry(&entries[i])[skip : skip+n])
		off += n
	}
	w.fill()
	c.h.finish(cm, 0, nvme.Success)
}

// entry makes a log entry.
func (c *controller) entry(e *catalogEntry) []byte {
	d := &nvme.DiscoveryEntry{
		TRTYPE: e.port.Addr.Transport, ADRFAM: nvme.AddressIPv4, SUBTYPE: nvme.SubsystemNVM, TREQ: nvme.TREQNoFlowControl,
		PORTID: e.port.ID, CNTLID: nvme.CNTLIDDynamic, ASQSZ: minEntries,
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
	return d.Append(nil)
}
