package app

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/netif"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
)

// listeners keeps ports open at the addresses that the configured listeners have on this machine,
// see ADR 0025.
type listeners struct {
	s *Server
	// wake, of one entry, ends a pause of heal.
	wake chan struct{}
	stop func() // ends heal; nil before Start

	changing sync.Mutex // held while something changes; guards what follows
	stopped  bool
	machine  netif.State
	unread   bool              // the addresses could not be read last time
	ids      map[string]uint16 // port IDs, by name

	mu sync.Mutex // guards what follows, for those who only look
	// drained has the names of the ports that are to stay closed, and of listeners with all ports.
	drained map[string]bool
	// ana has the states that were set by hand, by listener and group; nil after close.
	ana map[string]map[uint32]*anaState
	// transition is how long nvme.ANAStateChange lasts; tests wait less.
	transition time.Duration

	list []*listener // the most specific first
	// coming are the listeners that there will be after an Apply that is under way, in the same
	// order. Ports that they have stay open.
	coming []*listener
	ports  map[string]*port
	// tos is the type of service of each listener, by port ID: transports ask for it while they
	// open one.
	tos map[uint16]uint8
}

// listener is a configured listener. It is guarded by listeners.mu.
type listener struct {
	name string
	config.Listener
	err error // why it has no port, or not all
	// logged is the text of the error that was logged last, "" for none.
	logged string
	// seen: an interface has had its address, if that is a single one.
	seen bool
	// starting: it is being added; what fails is returned and not logged.
	starting bool
}

// port is an address of a listener. It is guarded by listeners.mu.
type port struct {
	name   string // that of the listener, with this address
	id     uint16 // that of the discovery log
	l      *listener
	addr   fabric.Addr     // with the real port number once it was open
	open   fabric.Listener // nil while it waits
	err    error           // why it waits
	logged string          // as in listener
	known  bool            // the target has it, and it is in the discovery log
	lost   bool            // it is open, but accepts nothing any more
}

// add opens the ports of a listener. Those that are not available wait; the error is that of a
// listener that has none.
func (ls *listeners) add(l *listener) error {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.mu.Lock()
	ls.list = append(ls.list, l)
	slices.SortFunc(ls.list, bySpecificity)
	l.starting = l.Required
	ls.mu.Unlock()
	_, _, _ = ls.update() // an error would be that of another port, which is closed
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.starting = false
	ls.try()
	return ls.waits(l)
}

// waits returns why a listener has no open port, nil if it has one. ls.mu is held.
func (ls *listeners) waits(l *listener) error {
	err := l.err
	for _, p := range ls.byID() {
		switch {
		case p.l != l:
		case p.open != nil:
			return nil
		case err == nil:
			err = p.err
		}
	}
	return err
}

// restore adds a listener again. That it has no address now is no error.
func (ls *listeners) restore(l *listener) error {
	err := ls.add(l)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l.err != nil {
		return nil
	}
	return err
}

// reason is waits for those who do not hold ls.mu.
func (ls *listeners) reason(l *listener) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.waits(l)
}

// remove closes the ports of a listener that no other one has, and ends their connections.
func (ls *listeners) remove(name string) error {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.mu.Lock()
	ls.list = slices.DeleteFunc(ls.list, func(l *listener) bool { return l.name == name })
	ls.mu.Unlock()
	_, _, err := ls.update()
	ls.try()
	return err
}

// modify changes what a listener does besides listening at its addresses. After an error it is as
// before, or waits.
func (ls *listeners) modify(name string, c config.Listener) error {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	l := ls.get(name)
	before := l.Listener
	err := ls.set(l, c)
	if err != nil {
		err = errors.Join(err, ls.set(l, before))
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range ls.byID() {
		if p.l == l && p.known && p.open == nil {
			err = errors.Join(err, ls.publish(p))
		}
	}
	ls.try()
	return err
}

// set gives a listener other settings. Its open ports are opened again if they need to; their
// connections keep their type of service.
func (ls *listeners) set(l *listener, c config.Listener) error {
	ls.mu.Lock()
	again, tls := l.TOS != c.TOS, l.TLS != c.TLS
	l.Listener = c
	ports := ls.byID()
	errs := []error{ls.applyANA()}
	ls.mu.Unlock()
	for _, p := range ports {
		if again && p.l == l && p.known {
			errs = append(errs, ls.listen(p))
		}
		if tls && p.l == l && p.known {
			ls.s.target.SetPortListener(p.id, l.name, c.TLS)
		}
	}
	return errors.Join(errs...)
}

// listen opens a port, or closes it and opens it again at the same address.
func (ls *listeners) listen(p *port) error {
	ls.mu.Lock()
	before, addr, required := p.open, p.addr, p.l.Required
	ls.tos[p.id] = p.l.TOS
	ls.mu.Unlock()
	var err error
	if before != nil {
		err = before.Close()
	}
	ls.mu.Lock()
	p.lost = false // it may be lost as soon as it is open
	ls.mu.Unlock()
	var open fabric.Listener
	try := func() (err error) {
		open, err = ls.s.listen(addr, p.id)
		return err
	}
	switch {
	case err != nil:
	case required:
		err = ls.s.patiently(try)
	default:
		err = try() // heal tries again
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p.open, p.err = open, err
	if open != nil {
		p.addr = open.Addr()
	}
	return err
}

// publish tells the target whether a port is open. If it is not, its connections end.
func (ls *listeners) publish(p *port) (err error) {
	open := p.open != nil
	switch {
	case open == p.known:
	case open:
		err = ls.s.target.AddPort(discovery.Port{
			ID: p.id, Addr: p.addr, Listener: p.l.name, TLS: p.l.TLS,
		})
	default:
		err = ls.s.target.RemovePort(p.id)
	}
	p.known = open && err == nil
	return err
}

// listen opens a listener.
func (s *Server) listen(at fabric.Addr, portID uint16) (fabric.Listener, error) {
	t := s.transports[at.Transport]
	switch {
	case t == nil:
		return nil, fmt.Errorf("listen at %v: %w", at, verbs.ErrNotBuilt)
	case at.Transport == nvme.TransportRDMA && !s.external: // tests have no real device
		if err := checkMemlock(len(s.workers), s.atStart.Reactors.Memory); err != nil {
			return nil, fmt.Errorf("listen at %v: %w", at, err)
		}
	}
	return t.Listen(at, portID, s.place)
}

// lost is called by a transport whose listener accepts nothing any more.
func (ls *listeners) lost(portID uint16) {
	ls.mu.Lock()
	for _, p := range ls.ports {
		p.lost = p.lost || p.id == portID
	}
	ls.mu.Unlock()
	ls.try()
}

// tosOf returns the type of service of the connections of a port.
func (ls *listeners) tosOf(portID uint16) uint8 {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.tos[portID]
}

// tlsOf returns whether new connections of a port use TLS.
func (ls *listeners) tlsOf(portID uint16) fabric.TLSPolicy {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range ls.ports {
		if p.id == portID {
			return p.l.TLS
		}
	}
	return fabric.TLSOff // it is being closed
}

// get returns the listener with this name, which exists.
func (ls *listeners) get(name string) *listener {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.list[slices.IndexFunc(ls.list, func(l *listener) bool { return l.name == name })]
}

// occupy reports whether an open port has an address, or all addresses if that is one of them.
func (ls *listeners) occupy(at fabric.Addr) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range ls.ports {
		if p.open != nil && p.addr.Transport == at.Transport && p.addr.Port() == at.Port() &&
			(p.addr.Addr() == at.Addr() || p.addr.Addr().IsUnspecified() ||
				at.Addr().IsUnspecified()) {
			return true
		}
	}
	return false
}

// byID lists the ports. ls.mu is held.
func (ls *listeners) byID() []*port {
	return slices.SortedFunc(maps.Values(ls.ports),
		func(a, b *port) int { return cmp.Compare(a.id, b.id) })
}

// addrs returns the addresses of the open ports with real port numbers, and the names of what
// waits: ports, and listeners without any.
func (ls *listeners) addrs() (up []fabric.Addr, waiting []string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range ls.byID() {
		switch {
		case ls.isDrained(p):
		case p.open != nil:
			up = append(up, p.addr)
		case !never(p.err):
			waiting = append(waiting, p.addr.String())
		}
	}
	for _, l := range ls.list {
		if l.err != nil && !ls.drained[l.name] {
			waiting = append(waiting, l.name)
		}
	}
	return up, waiting
}

// encrypted reports whether hosts need TLS at an address of addrs.
func (ls *listeners) encrypted(addr fabric.Addr) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range ls.ports {
		if p.open != nil && p.addr == addr {
			return p.l.TLS == fabric.TLSRequired
		}
	}
	return false
}

// never says that a listener will not start, however long it is waited for.
func never(err error) bool { return errors.Is(err, verbs.ErrNotBuilt) }

// close closes the ports; connections stay.
func (ls *listeners) close() error {
	if ls.stop != nil {
		ls.stop()
	}
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.stopped = true
	ls.s.mdns.Close()
	ls.mu.Lock()
	ls.stopANA()
	ports := ls.byID()
	ls.mu.Unlock()
	var errs []error
	for _, p := range ports {
		if p.open != nil {
			errs = append(errs, p.open.Close())
		}
	}
	return errors.Join(errs...)
}
