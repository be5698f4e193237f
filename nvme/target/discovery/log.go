package discovery

import (
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

// MinQueueSize is the size of the admin queue that hosts are told of: that of a Linux host, and the
// least that ASQSZ may be.
const MinQueueSize = 32

// Host is the reader of a log.
type Host struct {
	NQN string
	// Port is the identifier of the port that the host came through, Listener the name of its
	// listener, and Local the address that the host connected to.
	Port     uint16
	Listener string
	Local    netip.Addr
	// MayUse reports whether the host may use a subsystem.
	MayUse func(Subsystem) bool
}

// Logs are a host's last logs: of all ports, and of its own. The zero value has none.
type Logs [2]*Log

// Log is the log as one host sees it through one port: the subsystems that it may use there, each
// at all ports that serve it. It is immutable once Logs has it. It does not grow with the number of
// entries, which are encoded when they are read.
type Log struct {
	made       uint64          // the generation of the table
	local      bool            // of the port that the host came through
	hash       uint64          // of the entries
	generation uint64          // GENCTR: the first one for which it was the same
	nqn        string          // of the discovery service
	ports      []reachablePort // as in the table
	reachable  int             // the number of valid ones
	subs       []visible
	remotes    []*Remote
	referrals  []*Referral
	entries    uint64
	shared     bool // as in the table
	// duplicate: a host finds the same subsystems through all ports of the log.
	duplicate bool
}

// reachablePort is a port under the address at which the host reaches it. The address is not valid
// if there is none, or if the host finds nothing but the discovery service there.
type reachablePort struct {
	*Port
	addr netip.Addr
}

// visible is a subsystem with the index of its first entry.
type visible struct {
	*entry
	first uint64
}

// which returns the place of a log.
func (l *Logs) which(local bool) **Log {
	if local {
		return &l[1]
	}
	return &l[0]
}

// Get returns the log of a table, nil if it was not made.
func (l *Logs) Get(t *Table, local bool) *Log {
	if last := l.Last(local); last != nil && last.made == t.Generation {
		return last
	}
	return nil
}

// Last returns the log that was taken last, nil if there is none.
func (l *Logs) Last(local bool) *Log { return *l.which(local) }

// Take takes a log in place of the one before, unless that is newer. It reports whether the entries
// have changed since.
func (l *Logs) Take(made *Log) (changed bool) {
	which := l.which(made.local)
	last := *which
	if last != nil && last.made >= made.made {
		return false
	}
	*which = made
	if last != nil && last.hash == made.hash {
		if !made.shared {
			made.generation = last.generation
		}
		return false
	}
	return true
}

// Remake makes the logs again that the host has. Any goroutine may call it; the caller passes a
// copy of its Logs.
func (l Logs) Remake(t *Table, h *Host) (made []*Log) {
	for _, last := range l {
		if last != nil && last.made != t.Generation {
			made = append(made, NewLog(t, h, last.local))
		}
	}
	return made
}

// NewLog makes the log of a table; local: of the port that the host came through. It looks at all
// subsystems at all ports, so no reactor calls it.
func NewLog(t *Table, h *Host, local bool) *Log {
	l := &Log{
		made: t.Generation, generation: t.Generation, nqn: t.NQN, local: local,
		ports: make([]reachablePort, len(t.Ports)), shared: t.Shared,
	}
	every, some := false, make([]bool, len(t.Ports)) // serve a subsystem that the host finds here
	for k := range t.subs {
		s := &t.subs[k]
		served := s.ServedBy() == nil || s.ServedBy()[h.Listener]
		if !served || !h.MayUse(s.Subsystem) {
			continue
		}
		l.subs = append(l.subs, visible{entry: s})
		if every = every || k > 0 && len(s.ports) == len(t.Ports); every || k == 0 {
			continue // the first one is the discovery service
		}
		for _, i := range s.ports {
			some[i] = true
		}
	}
	for i := range t.Ports {
		p := &t.Ports[i]
		if own := p.ID == h.Port; !own && (local || !every && !some[i]) {
			continue
		}
		if addr, ok := h.reaches(p); ok {
			l.ports[i] = reachablePort{p, addr}
			l.reachable++
		}
	}
	for i := range t.Remotes {
		// An address of loopback is of use only to hosts on this machine.
		r := &t.Remotes[i]
		if !local && (!r.Addr.Addr().IsLoopback() || h.Local.IsLoopback()) {
			l.remotes = append(l.remotes, r)
		}
	}
	for k := range l.subs {
		l.subs[k].first = l.entries
		l.entries += uint64(l.portsOf(l.subs[k].entry))
		for _, r := range l.remotes {
			if r.serves(l.subs[k]) {
				l.entries++
			}
		}
	}
	for i := range t.Referrals {
		r := &t.Referrals[i]
		if !local && (len(r.Hosts) == 0 || slices.Contains(r.Hosts, h.NQN)) {
			l.referrals = append(l.referrals, r)
		}
	}
	l.entries += uint64(len(l.referrals))
	l.duplicate = !slices.ContainsFunc(t.subs, func(s entry) bool {
		n := l.portsOf(&s)
		return 0 < n && n < l.reachable && h.MayUse(s.Subsystem)
	})
	l.hash = l.content()
	return l
}

// reaches returns the address under which the host reaches a port: for a wildcard the address that
// it connected to, if the family fits. A port on the wildcard :: takes IPv4 too. A link-local
// address is of use only to hosts on the link, so others are not shown it.
func (h *Host) reaches(p *Port) (netip.Addr, bool) {
	addr := p.Addr.Addr().Unmap().WithZone("") // a zone is local to this machine
	if !addr.IsUnspecified() {
		linkLocal := addr.Is6() && addr.IsLinkLocalUnicast()
		return addr, !linkLocal || h.Local.IsLinkLocalUnicast()
	}
	local := h.Local.Unmap().WithZone("")
	return local, !addr.Is4() || local.Is4()
}

// portsOf returns how many ports of the log serve a subsystem.
func (l *Log) portsOf(s *entry) (n int) {
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

// seed is that of Log.content: nobody can make two logs with the same hash.
var seed = maphash.MakeSeed()

// content is a hash of the entries.
func (l *Log) content() uint64 {
	ports := make([]uint64, len(l.ports))
	hash := func(p *Port, addr netip.Addr) uint64 {
		at := struct {
			id     uint16
			listen fabric.Addr
			addr   netip.Addr
			tls    fabric.TLSPolicy
		}{p.ID, p.Addr, addr, p.TLS}
		return maphash.Comparable(seed, at)
	}
	for i, p := range l.ports {
		if p.addr.IsValid() {
			ports[i] = hash(p.Port, p.addr)
		}
	}
	var sum maphash.Hash
	sum.SetSeed(seed)
	for _, s := range l.subs {
		at := uint64(0) // 0 for a port that is not in the log
		for _, i := range s.ports {
			at += ports[i]
		}
		for _, r := range l.remotes {
			if r.serves(s) {
				at += hash(&r.Port, r.Addr.Addr())
			}
		}
		_, _ = sum.WriteString(s.Name())
		maphash.WriteComparable(&sum, at)
	}
	_, _ = fmt.Fprintln(&sum, l.nqn, l.duplicate)
	for _, r := range l.referrals {
		_, _ = fmt.Fprintln(&sum, r.Addr, r.NQN)
	}
	return sum.Sum64()
}

// Read encodes at most n bytes of the log from an offset, nil if the log ends before.
func (l *Log) Read(off, n uint64) []byte {
	size := nvme.DiscoveryHeaderSize + l.entries*nvme.DiscoveryEntrySize
	if off >= size {
		return nil
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
	return b[skip:end]
}

// from makes the entries from the given one on.
func (l *Log) from(e uint64) iter.Seq[*nvme.DiscoveryEntry] {
	return func(yield func(*nvme.DiscoveryEntry) bool) {
		k := sort.Search(len(l.subs), func(k int) bool { return l.subs[k].first > e })
		for _, s := range l.subs[max(k-1, 0):] {
			at := s.first
			for _, i := range s.ports {
				p := &l.ports[i]
				if !p.addr.IsValid() {
					continue
				}
				if at >= e && !yield(l.entry(s.Name(), p)) {
					return
				}
				at++
			}
			for _, r := range l.remotes {
				if !r.serves(s) {
					continue
				}
				if at >= e && !yield(l.entry(s.Name(), &reachablePort{&r.Port, r.Addr.Addr()})) {
					return
				}
				at++
			}
		}
		at := l.entries - uint64(len(l.referrals))
		for i := max(e, at) - at; i < uint64(len(l.referrals)); i++ {
			r := l.referrals[i]
			ip := r.Addr.Addr().Unmap().WithZone("")
			if !yield(newEntry(r.Addr, ip, nvme.SubsystemReferral, r.NQN)) {
				return
			}
		}
	}
}

// entry makes the entry of a subsystem at a port.
func (l *Log) entry(nqn string, p *reachablePort) *nvme.DiscoveryEntry {
	typ, flags := nvme.SubsystemNVM, nvme.EFLAGS(0)
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
