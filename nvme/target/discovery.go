package target

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// discoveryLog is log 70h of one host in one generation. It is immutable. Entries are encoded
// only when they are read.
type discoveryLog struct {
	generation uint64
	entries    []discoveryEntry
}

type discoveryEntry struct {
	port Port
	addr netip.Addr
	sub  *subsystem
}

// discoveryPage makes the requested part of log 70h (Base section 5.1.12.3.1). The log may be long,
// so an ordinary goroutine makes it.
func discoveryPage(c *controller, sqe *nvme.SQE) reply {
	off, n := sqe.GetLog().LPO(), sqe.GetLog().Bytes()
	return reply{slow: func() reply {
		l := c.discoveryLog.Load()
		if l == nil || l.generation != c.t.genctr.Load() {
			l = c.newDiscoveryLog()
			c.discoveryLog.Store(l)
		}
		return l.read(off, n)
	}}
}

// newDiscoveryLog makes the log of the current generation. Any goroutine.
func (c *controller) newDiscoveryLog() *discoveryLog {
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
	list := make([]discoveryEntry, 0, len(subs)*len(ports))
	for _, s := range subs {
		for _, p := range ports {
			if addr, ok := c.reachable(p); ok {
				list = append(list, discoveryEntry{p, addr, s})
			}
		}
	}
	return &discoveryLog{generation, list}
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
func (l *discoveryLog) read(off, n uint64) reply {
	size := uint64(nvme.DiscoveryHeaderSize + len(l.entries)*nvme.DiscoveryEntrySize)
	if off >= size {
		return reply{st: invalidField}
	}
	// The header is as long as an entry.
	first, skip := off/nvme.DiscoveryEntrySize, off%nvme.DiscoveryEntrySize
	var b []byte
	for i := first; uint64(len(b)) < skip+min(n, size-off); i++ {
		if i == 0 {
			b = nvme.Append(b, &nvme.DiscoveryHeader{
				GENCTR: l.generation, NUMREC: uint64(len(l.entries)),
			})
		} else {
			b = l.entries[i-1].append(b)
		}
	}
	return reply{data: b[skip:]}
}

// append appends the entry as the log has it.
func (e *discoveryEntry) append(b []byte) []byte {
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
