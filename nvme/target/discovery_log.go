package target

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"iter"
	"net/netip"
	"slices"
	"sort"
	"strconv"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// discoveryLog is log 70h as one host sees it through one port: the subsystems that it may use
// there, each at all ports that serve it. It is immutable but for hash and generation. It does not
// grow with the number of entries, which are encoded when they are read.
type discoveryLog struct {
	made       uint64          // of which generation of the table
	hash       uint64          // see content; 0: not needed yet
	generation uint64          // GENCTR: the first one for which it was the same
	nqn        string          // of the discovery service
	ports      []reachablePort // as in the table
	reachable  int             // of these
	subs       []discoverableFrom
	referrals  []Referral
	entries    uint64
	// duplicate: a host finds the same subsystems through all ports of the log.
	duplicate bool
}

// reachablePort is a port under the address at which this host reaches it, which is not valid if it
// does not, or finds there nothing but the discovery service.
type reachablePort struct {
	*Port
	addr netip.Addr
}

// discoverableFrom is a subsystem whose entries begin at index first.
type discoverableFrom struct {
	*discoverable
	first uint64
}

// discoveryPage makes the requested part of log 70h (Base section 5.1.12.3.1).
func discoveryPage(c *controller, sqe *nvme.SQE) reply {
	which := 0
	if sqe.GetLog().LSP()&nvme.DiscoveryLocal != 0 {
		which = 1
	}
	return c.discoveryLog(which).read(sqe.GetLog().LPO(), sqe.GetLog().Bytes())
}

// discoveryLog is the present one of controller.discoveryLogs.
func (c *controller) discoveryLog(which int) *discoveryLog {
	t, last := c.t.discoveryTable.Load(), c.discoveryLogs[which]
	if last != nil && last.made == t.generation { // it takes long: hosts must not cause it
		return last
	}
	l := c.newDiscoveryLog(t, which == 1)
	if last != nil && last.content() == l.content() {
		l.generation = last.generation
	}
	c.discoveryLogs[which] = l
	return l
}

func (c *controller) newDiscoveryLog(t *discoveryTable, local bool) *discoveryLog {
	l := &discoveryLog{
		made: t.generation, generation: t.generation, nqn: cmp.Or(t.NQN, nvme.DiscoveryNQN),
		ports: make([]reachablePort, len(t.ports)),
	}
	every, some := false, make([]bool, len(t.ports)) // serve a subsystem that the host finds here
	for k := range t.subs {
		s := &t.subs[k]
		if !c.t.discoverableBy(s.settings, c.hostNQN) || !s.serves(c.admin.port) {
			continue
		}
		l.subs = append(l.subs, discoverableFrom{discoverable: s})
		if every = every || k > 0 && len(s.ports) == len(t.ports); every || k == 0 {
			continue // the first one is the discovery service
		}
		for _, i := range s.ports {
			some[i] = true
		}
	}
	for i := range t.ports {
		p := &t.ports[i]
		if own := p.ID == c.info.PortID; !own && (local || !every && !some[i]) {
			continue
		}
		if addr, ok := c.reachable(*p); ok {
			l.ports[i] = reachablePort{p, addr}
			l.reachable++
		}
	}
	for k := range l.subs {
		l.subs[k].first = l.entries
		l.entries += uint64(l.portsOf(l.subs[k].discoverable))
	}
	for _, r := range t.Referrals {
		if !local && (len(r.Hosts) == 0 || slices.Contains(r.Hosts, c.hostNQN)) {
			l.referrals = append(l.referrals, r)
		}
	}
	l.entries += uint64(len(l.referrals))
	l.duplicate = !slices.ContainsFunc(t.subs, func(s discoverable) bool {
		n := l.portsOf(&s)
		return 0 < n && n < l.reachable && c.t.discoverableBy(s.settings, c.hostNQN)
	})
	return l
}

// portsOf is how many ports of the log serve a subsystem.
func (l *discoveryLog) portsOf(s *discoverable) (n int) {
	if len(s.ports) == len(l.ports) {
		return l.reachable
	}
	for _, i := range s.ports {
		if l.ports[i].addr.IsValid() {
			n++
		}
	}
	return n
}

// discoverySeed is that of discoveryLog.content: nobody can make two logs with the same one.
var discoverySeed = maphash.MakeSeed()

// content is a hash of what the entries say. A change makes it for many hosts.
func (l *discoveryLog) content() uint64 {
	if l.hash != 0 {
		return l.hash
	}
	ports := make([]uint64, len(l.ports))
	for i, p := range l.ports {
		if p.addr.IsValid() {
			at := struct {
				id     uint16
				listen fabric.Addr
				addr   netip.Addr
			}{p.ID, p.Addr, p.addr}
			ports[i] = maphash.Comparable(discoverySeed, at)
		}
	}
	var sum maphash.Hash
	sum.SetSeed(discoverySeed)
	for _, s := range l.subs {
		at := uint64(0) // 0 for a port that is not in the log
		for _, i := range s.ports {
			at += ports[i]
		}
		_, _ = sum.WriteString(s.NQN)
		maphash.WriteComparable(&sum, at)
	}
	_, _ = fmt.Fprintln(&sum, l.nqn, l.duplicate)
	for i := range l.referrals {
		_, _ = fmt.Fprintln(&sum, l.referrals[i].Addr, l.referrals[i].NQN)
	}
	l.hash = sum.Sum64()
	return l.hash
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
	size := nvme.DiscoveryHeaderSize + l.entries*nvme.DiscoveryEntrySize
	if off >= size {
		return reply{st: invalidField}
	}
	// The header is as long as an entry.
	first, skip := off/nvme.DiscoveryEntrySize, off%nvme.DiscoveryEntrySize
	end := skip + min(n, size-off)
	b := make([]byte, 0, end+nvme.DiscoveryEntrySize)
	if first == 0 {
		b = nvme.Append(b, &nvme.DiscoveryHeader{GENCTR: l.generation, NUMREC: l.entries})
		first = 1
	}
	for e := range l.from(first - 1) {
		if uint64(len(b)) >= end {
			break
		}
		b = nvme.Append(b, e)
	}
	return reply{data: b[skip:end]}
}

// from makes the entries from the given one on.
func (l *discoveryLog) from(e uint64) iter.Seq[*nvme.DiscoveryEntry] {
	return func(yield func(*nvme.DiscoveryEntry) bool) {
		k := sort.Search(len(l.subs), func(k int) bool { return l.subs[k].first > e })
		for _, s := range l.subs[max(k-1, 0):] {
			at := s.first
			for _, i := range s.ports {
				p := &l.ports[i]
				if !p.addr.IsValid() {
					continue
				}
				if at >= e && !yield(l.entry(s.settings, p)) {
					return
				}
				at++
			}
		}
		at := l.entries - uint64(len(l.referrals))
		for i := max(e, at) - at; i < uint64(len(l.referrals)); i++ {
			if !yield(l.referrals[i].entry()) {
				return
			}
		}
	}
}

// entry makes the entry of a subsystem at a port.
func (l *discoveryLog) entry(s *settings, p *reachablePort) *nvme.DiscoveryEntry {
	typ, nqn, flags := nvme.SubsystemNVM, s.NQN, nvme.EFLAGS(0)
	if nqn == nvme.DiscoveryNQN {
		typ, nqn, flags = nvme.SubsystemDiscovery, l.nqn, nvme.EFLAGSPersistent
		if l.duplicate {
			flags |= nvme.EFLAGSDuplicate
		}
	}
	d := newEntry(p.Addr, p.addr, typ, nqn)
	d.PORTID, d.EFLAGS = p.ID, flags
	switch p.TLS { // TCP section 3.6.1.1
	case fabric.TLSAllowed:
		// With TCPTLS13 besides, libnvme (nvmf_update_tls_concat) would concatenate, which fails.
		d.TREQ |= nvme.TREQNotRequired
	case fabric.TLSRequired:
		d.TREQ |= nvme.TREQRequired
		d.SetTCP(nvme.TCPTLS13)
	}
	return d
}

func (r *Referral) entry() *nvme.DiscoveryEntry {
	return newEntry(r.Addr, r.Addr.Addr().Unmap().WithZone(""), nvme.SubsystemReferral, r.NQN)
}

// newEntry makes an entry for a transport and port, at ip.
func newEntry(at fabric.Addr, ip netip.Addr, typ nvme.SubsystemType, nqn string,
) *nvme.DiscoveryEntry {
	d := &nvme.DiscoveryEntry{
		TRTYPE: at.Transport, ADRFAM: nvme.AddressIPv4, SUBTYPE: typ,
		TREQ: nvme.TREQNoFlowControl, CNTLID: nvme.CNTLIDDynamic, ASQSZ: MinQueueSize,
	}
	if ip.Is6() {
		d.ADRFAM = nvme.AddressIPv6
	}
	d.SetAddress(ip.String(), strconv.Itoa(int(at.Port())))
	switch at.Transport {
	case nvme.TransportRDMA:
		d.SetRDMA(nvme.RDMAProviderAny, 0)
	case nvme.TransportTCP:
		d.SetTCP(nvme.TCPNoSecurity)
	}
	nvme.PutNQN(&d.SUBNQN, nqn)
	return d
}
