package listeners

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/netif"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// This file finds the ports that the configured listeners should have, and opens and closes them.

// errOpening is the reason why a new port waits.
var errOpening = errors.New("it is being opened")

// bySpecificity orders listeners: of several with the same address the first one gets it.
func bySpecificity(a, b *listener) int {
	rank := func(l *listener) int {
		switch at := l.Address; {
		case !at.Many():
			return 0
		case at.Network.IsValid():
			return 1 + at.Network.Addr().BitLen() - at.Network.Bits()
		}
		return 1000
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
}

// at returns the port of a listener at one of its addresses.
func (l *listener) at(ip netip.Addr) fabric.Addr {
	return fabric.Addr{Transport: l.Transport, AddrPort: netip.AddrPortFrom(ip, l.Port)}
}

// portName returns the name under which the port ID is kept.
func (l *listener) portName(ip netip.Addr) string {
	switch {
	case !l.Address.Many():
		return l.Name
	case l.Port == 0:
		return l.Name + " " + ip.String()
	}
	return l.at(ip).String()
}

// Addresses returns the current addresses of a listener on a machine in order, or why it has none.
func Addresses(c config.Listener, m *netif.State) (addrs []fabric.Addr, err error) {
	l := listener{Listener: c}
	ips, err := l.addresses(m)
	for _, ip := range ips {
		addrs = append(addrs, l.at(ip))
	}
	return addrs, err
}

// addresses returns the current addresses of a listener on a machine, in order, or why it has none.
func (l *listener) addresses(m *netif.State) (ips []netip.Addr, err error) {
	at, down := l.Address, ""
	if i, err := strconv.ParseUint(at.IP.Zone(), 10, 32); err == nil {
		at.IP = at.IP.WithZone(sys.Zone(uint32(i))) // as open and kept sockets have it
	}
	add := func(a netif.Address) {
		switch {
		case !a.Up:
			down = a.Interface
		default:
			ips = append(ips, a.Addr)
		}
	}
	interfaces := []string{at.Device}
	if names, ok := m.RDMA[at.Device]; ok && l.Transport == nvme.TransportRDMA {
		interfaces = names
	}
	for _, a := range m.Addresses {
		linkLocal := a.Is6() && a.IsLinkLocalUnicast()
		switch {
		case !at.Many():
			if a.Addr == at.IP {
				add(a)
			}
		case at.Device != "":
			if slices.Contains(interfaces, a.Interface) {
				add(a)
			}
		case at.Network.Contains(a.Addr) && !linkLocal &&
			(!a.IsLoopback() || at.Network.Addr().IsLoopback()):
			add(a)
		}
	}
	switch {
	case len(ips) > 0:
		l.seen = true
		slices.SortFunc(ips, netip.Addr.Compare)
		return slices.Compact(ips), nil // several interfaces can have the same address
	case down != "":
		l.seen = true
		return nil, fmt.Errorf("%s: the network interface %s is switched off (ip link set %s up)",
			l.Name, down, down)
	case at.Device != "":
		kind := "network interface"
		if l.Transport == nvme.TransportRDMA {
			kind += " or RDMA device"
		}
		return nil, fmt.Errorf("%s: no %s called %s has an address (ip address); host names are "+
			"not resolved", l.Name, kind, at.Device)
	case !at.Many() && !l.seen:
		// Linux also has addresses without an interface, such as all of 127.0.0.0/8.
		return []netip.Addr{at.IP}, nil
	}
	return nil, fmt.Errorf("%s: no network interface has such an address (ip address)", l.Name)
}

// Prepare comes before changes to the next listeners. It reads the addresses of the machine, and
// gives ports IDs that are made durable together.
func (ls *Listeners) Prepare(next []config.Listener) error {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.read(next)
	ls.Expect(next)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ports := ls.wanted(ls.coming)
	place := func(p *port) int {
		return slices.IndexFunc(next, func(c config.Listener) bool { return c.Name == p.l.Name })
	}
	slices.SortStableFunc(ports, func(a, b *port) int { // new IDs are in the order of the file
		return cmp.Compare(place(a), place(b))
	})
	if err := ls.identify(ports); err != nil {
		return err
	}
	if s := ls.Sockets; s != nil { // new ports may need their addresses
		keep := map[netip.AddrPort]bool{}
		for _, p := range ports {
			keep[p.addr.AddrPort] = true
		}
		s.DropOthers(keep)
	}
	return nil
}

// Expect says which listeners there will be after the changes that follow; nil: no changes follow.
func (ls *Listeners) Expect(next []config.Listener) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.coming = nil
	for _, c := range next {
		ls.coming = append(ls.coming, &listener{Listener: c})
	}
	slices.SortFunc(ls.coming, bySpecificity)
}

// identify gives all ports an ID. Open ports keep their IDs: they are used again, so they are not
// forgotten. After an error new ports have none. ls.mu is held.
func (ls *Listeners) identify(wanted []*port) error {
	var names []string
	missing := false
	for _, p := range wanted {
		names = append(names, p.name)
		missing = missing || ls.ids[p.name] == 0
	}
	if !missing {
		return nil
	}
	for _, p := range ls.byID() {
		if !slices.Contains(names, p.name) {
			names = append(names, p.name)
		}
	}
	ids, err := ls.State.Ports(names)
	if err == nil {
		ls.ids = ids
	}
	return err
}

// wanted returns the ports that listeners should have, which are in the order of bySpecificity, and
// sets their errors. ls.mu is held.
func (ls *Listeners) wanted(list []*listener) (ports []*port) {
	taken := map[fabric.Addr]bool{}
	for _, l := range list {
		var ips []netip.Addr
		ips, l.err = l.addresses(&ls.machine)
		mine := 0
		for _, ip := range ls.openFirst(l, ips) {
			at := l.at(ip)
			if taken[at] {
				continue // by a more specific one
			}
			if len(ports) == config.MaxListeners {
				l.err = fmt.Errorf("%s has %d addresses, and there are at most %d ports in all: "+
					"name a smaller network, or an interface with fewer addresses", l.Name,
					len(ips), config.MaxListeners)
				break
			}
			taken[at] = l.Port != 0
			ports = append(ports, &port{name: l.portName(ip), l: l, addr: at})
			mine++
		}
		if mine == 0 && l.err == nil {
			l.err = fmt.Errorf("%s: other listeners have all its addresses", l.Name)
		}
	}
	return ports
}

// openFirst returns addresses, the ones that have ports first.
func (ls *Listeners) openFirst(l *listener, ips []netip.Addr) []netip.Addr {
	var open, others []netip.Addr
	for _, ip := range ips {
		if ls.ports[l.portName(ip)] != nil {
			open = append(open, ip)
		} else {
			others = append(others, ip)
		}
	}
	return append(open, others...)
}

// update opens and closes ports until they match the listeners on this machine. It returns the
// addresses that it has opened and closed, and the errors of closing. ls.changing is held.
func (ls *Listeners) update() (up, gone []fabric.Addr, err error) {
	ls.mu.Lock()
	wanted := ls.wanted(ls.list)
	unknown := ls.identify(wanted)
	var open, unwanted, moved []*port // to be opened, closed, and given to another listener
	keep := map[string]bool{}
	for _, w := range wanted {
		p := ls.ports[w.name]
		if p == nil && ls.ids[w.name] == 0 {
			w.l.err = fmt.Errorf("%v: %w", w.addr, unknown)
			continue
		}
		if p == nil {
			p, w.id, w.err = w, ls.ids[w.name], errOpening
			ls.ports[w.name] = p
		}
		switch {
		case ls.isDrained(w):
			p.err = nil
			unwanted = append(unwanted, p)
		case p.open == nil || p.lost || p.l.TOS != w.l.TOS,
			p.l.Stack != w.l.Stack:
			open = append(open, p)
		}
		if p.known && (p.l.Name != w.l.Name || p.l.TLS != w.l.TLS) {
			moved = append(moved, p)
		}
		p.l = w.l // it may have belonged to another listener
		keep[w.name] = true
	}
	for _, p := range ls.wanted(ls.coming) {
		keep[p.name] = true
	}
	for _, p := range ls.byID() {
		if !keep[p.name] {
			unwanted = append(unwanted, p)
			delete(ls.ports, p.name)
		}
	}
	errs := []error{ls.applyANA()}
	ls.mu.Unlock()
	for _, p := range moved {
		ls.Target.SetPortListener(p.id, p.l.Name, p.l.TLS)
	}
	for _, p := range unwanted {
		if p.known {
			gone = append(gone, p.addr)
			errs = append(errs, ls.closePort(p))
		}
	}
	for _, p := range open {
		if ls.openPort(p) {
			up = append(up, p.addr)
		}
	}
	ls.complain()
	return up, gone, errors.Join(errs...)
}

// closePort closes an open port, and ends its connections.
func (ls *Listeners) closePort(p *port) error {
	err := p.open.Close()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p.open = nil
	return errors.Join(err, ls.publish(p))
}

// openPort opens a port, and reports whether it has become open.
func (ls *Listeners) openPort(p *port) (up bool) {
	err := ls.listen(p)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	was := p.known
	p.err = errors.Join(err, ls.publish(p))
	return p.open != nil && !was
}

// complain logs why ports and listeners wait, whenever the reason changes.
func (ls *Listeners) complain() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	logged := 0
	log := func(l *listener, err error, last *string) {
		text := ""
		if err != nil {
			text = err.Error()
		}
		if l.starting || text == *last {
			return
		}
		*last = text
		switch {
		case err == nil || logged == mostLogged:
		case never(err):
			ls.Log.Error("listener cannot start and never will", "err", err)
		default:
			ls.Log.Warn("listener cannot start yet, waiting for it", "err", err)
		}
		if err != nil && logged < mostLogged {
			logged++
		}
	}
	for _, l := range ls.list {
		log(l, l.err, &l.logged)
	}
	for _, p := range ls.byID() {
		log(p.l, p.err, &p.logged)
	}
}

// Owners are the listeners that have a port before changes and after them; "": they close it.
type Owners struct{ Now, Then string }

// Owners returns the listeners of the open ports, by port ID, now and when these are the next ones.
func (ls *Listeners) Owners(next []config.Listener) map[uint16]Owners {
	list := make([]*listener, len(next))
	for i, c := range next {
		list[i] = &listener{Listener: c}
	}
	slices.SortFunc(list, bySpecificity)
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ports := map[uint16]Owners{}
	for _, p := range ls.ports {
		if p.open != nil {
			ports[p.id] = Owners{Now: p.l.Name}
		}
	}
	for _, w := range ls.wanted(list) {
		if p := ls.ports[w.name]; p != nil && p.open != nil {
			ports[p.id] = Owners{p.l.Name, w.l.Name}
		}
	}
	return ports
}

// KeptPorts returns the IDs of the ports at which hosts that connect wait for the next process.
func (ls *Listeners) KeptPorts() map[uint16]bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	kept := map[uint16]bool{}
	for _, p := range ls.ports {
		if p.open != nil && (p.addr.Transport == nvme.TransportTCP || p.handed ||
			stackOf(p.open).Soft()) {
			kept[p.id] = true
		}
	}
	return kept
}
