package target

import (
	"net/netip"
	"strconv"

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
	generation uint64 // starts at 1 (Base section 5.1.12.3.1)
	ports      []Port
	subs       []*settings // of the discovery subsystem, and of the others by NQN
}

// Generation is the present generation of the discovery log (GENCTR).
func (t *Target) Generation() uint64 { return t.discoveryTable.Load().generation }

// discoveryLog is log 70h as one host sees it: each of the subsystems at each of the ports. It is
// immutable. Entries are encoded when they are read.
type discoveryLog struct {
	generation uint64
	ports      []reachablePort
	subs       []*settings
}

type reachablePort struct {
	Port
	addr netip.Addr // under which this host reaches it
}

// discoveryPage makes the requested part of log 70h (Base section 5.1.12.3.1).
func discoveryPage(c *controller, sqe *nvme.SQE) reply {
	t := c.t.discoveryTable.Load()
	if c.discoveryLog == nil || c.discoveryLog.generation != t.generation {
		c.discoveryLog = c.newDiscoveryLog(t)
	}
	return c.discoveryLog.read(sqe.GetLog().LPO(), sqe.GetLog().Bytes())
}

func (c *controller) newDiscoveryLog(t *discoveryTable) *discoveryLog {
	l := &discoveryLog{generation: t.generation}
	for _, p := range t.ports {
		if addr, ok := c.reachable(p); ok {
			l.ports = append(l.ports, reachablePort{p, addr})
		}
	}
	for _, s := range t.subs {
		if s.allows(c.hostNQN) {
			l.subs = append(l.subs, s)
		}
	}
	return l
}

// reachable is the address under which this host reaches a port: for a wildcard the address that
// the host connected to, if the family fits. A port on the wildcard :: takes IPv4 too. A link-local
// address is of use only to hosts on the link, so others are not shown it.
func (c *controller) reachable(p Port) (netip.Addr, bool) {
	addr := p.Addr.Addr().Unmap().WithZone("") // a zone is local to this machine
	if !addr.IsUnspecified() {
		linkLocal := addr.Is6() && addr.IsLinkLocalUnicast()
		return addr, !linkLocal || c.info.Local.Addr().IsLinkLocalUnicast()
	}
	local := c.info.Local.Addr().Unmap().WithZone("")
	return local, !addr.Is4() || local.Is4()
}

// read encodes at most n bytes of the log from off on.
func (l *discoveryLog) read(off, n uint64) reply {
	entries := uint64(len(l.subs) * len(l.ports))
	size := nvme.DiscoveryHeaderSize + entries*nvme.DiscoveryEntrySize
	if off >= size {
		return reply{st: invalidField}
	}
	// The header is as long as an entry.
	first, skip := off/nvme.DiscoveryEntrySize, off%nvme.DiscoveryEntrySize
	end := skip + min(n, size-off)
	b := make([]byte, 0, end+nvme.DiscoveryEntrySize)
	for i := first; uint64(len(b)) < end; i++ {
		if i == 0 {
			b = nvme.Append(b, &nvme.DiscoveryHeader{GENCTR: l.generation, NUMREC: entries})
			continue
		}
		ports := uint64(len(l.ports))
		b = appendEntry(b, l.subs[(i-1)/ports], &l.ports[(i-1)%ports])
	}
	return reply{data: b[skip:]}
}

// appendEntry appends the entry of a subsystem at a port as the log has it.
func appendEntry(b []byte, s *settings, p *reachablePort) []byte {
	d := &nvme.DiscoveryEntry{
		TRTYPE: p.Addr.Transport, ADRFAM: nvme.AddressIPv4, SUBTYPE: nvme.SubsystemNVM,
		TREQ:   nvme.TREQNoFlowControl,
		PORTID: p.ID, CNTLID: nvme.CNTLIDDynamic, ASQSZ: MinQueueSize,
	}
	if p.addr.Is6() {
		d.ADRFAM = nvme.AddressIPv6
	}
	if s.NQN == nvme.DiscoveryNQN {
		d.SUBTYPE = nvme.SubsystemDiscovery
		d.EFLAGS = nvme.EFLAGSPersistent | nvme.EFLAGSDuplicate
	}
	d.SetAddress(p.addr.String(), strconv.Itoa(int(p.Addr.Port())))
	switch p.Addr.Transport {
	case nvme.TransportRDMA:
		d.SetRDMA(nvme.RDMAProviderAny, 0)
	case nvme.TransportTCP:
		d.SetTCP(nvme.TCPNoSecurity)
	}
	nvme.PutNQN(&d.SUBNQN, s.NQN)
	return nvme.Append(b, d)
}
