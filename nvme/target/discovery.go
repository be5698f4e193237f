package target

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// catalog is what one host may see: the entries of the discovery log in order, for one generation.
// It is immutable. Entries are made into bytes only when they are read.
type catalog struct {
	generation uint64
	entries    []catalogEntry
}

type catalogEntry struct {
	port Port
	addr netip.Addr
	sub  *subsystem
}

// newCatalog makes the catalog of the current generation; old is returned if it is that already.
// Any goroutine.
func (c *controller) newCatalog(old *catalog) *catalog {
	t := c.t
	if old != nil && old.generation == t.genctr.Load() {
		return old
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
	return &catalog{generation, list}
}

// reachable is the address under which this host reaches a port: of a wildcard the one it came in
// on, if the family fits. A port on the wildcard :: takes IPv4 too.
func (c *controller) reachable(p Port) (netip.Addr, bool) {
	addr := p.Addr.Addr().Unmap().WithZone("") // a zone is ours, not the host's
	if !addr.IsUnspecified() {
		return addr, true
	}
	local := c.info.Local.Addr().Unmap().WithZone("")
	return local, !addr.Is4() || local.Is4()
}

// discoveryLog answers log 70h (Base section 5.1.12.3.1). A log may be long, so an ordinary
// goroutine makes it.
func (c *controller) discoveryLog(cm *cmd) {
	if !cm.req.SQE.GetLog().RAE() {
		c.logRead(nvme.LogDiscovery)
	}
	old := c.catalog
	go func() {
		cat := c.newCatalog(old)
		st := cat.read(cm.req)
		c.h.post(func() {
			c.catalog = cat
			c.h.finish(cm, 0, st)
		})
	}()
}

// read writes the part of the log that is asked for.
func (cat *catalog) read(r *fabric.Request) nvme.Status {
	off, size := r.SQE.GetLog().LPO(),
		uint64(nvme.DiscoveryHeaderSize+len(cat.entries)*nvme.DiscoveryEntrySize)
	if off >= size {
		return invalidField
	}
	w := replyWriter{segs: r.Segs}
	end := min(size, off+uint64(r.Length))
	for off < end {
		var part []byte
		// the header is as long as an entry
		i, skip := off/nvme.DiscoveryEntrySize, off%nvme.DiscoveryEntrySize
		if i == 0 {
			part = (&nvme.DiscoveryHeader{
				GENCTR: cat.generation,
				NUMREC: uint64(len(cat.entries)),
			}).Append(nil)
		} else {
			part = cat.entries[i-1].append(nil)
		}
		n := min(uint64(len(part))-skip, end-off)
		w.write(part[skip : skip+n])
		off += n
	}
	w.fill()
	return nvme.Success
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
	return d.Append(b)
}
