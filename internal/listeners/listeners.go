// Package listeners keeps ports open at the addresses of listeners while addresses, interfaces and
// devices come and go, and announces them. Transports do the listening. The package knows nothing
// of connections.
package listeners

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mdns"
	"github.com/nvmf-target/nvmf-target/internal/netif"
	"github.com/nvmf-target/nvmf-target/internal/ratelog"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/nvme/target"
	"github.com/nvmf-target/nvmf-target/nvme/target/discovery"
)

// Config has the surroundings of Listeners.
type Config struct {
	Target  *target.Target
	State   *state.Store // keeps the port IDs
	Log     *slog.Logger
	Peers   *ratelog.Logger // for lines that peers can cause at will
	Network Network
	Sockets *Sockets // nil: no listening socket outlives the program
	// Listen listens at an address for the connections of a port.
	Listen func(at fabric.Addr, portID uint16) (fabric.Listener, error)
	// Patiently repeats a function while another process, which may be ending, has something.
	Patiently func(func() error) error
	// Up is called when a port is open that was not available before, by any goroutine.
	Up func(fabric.Addr)
	// Retry is the first pause before a port is tried again, and Settle the first one between an
	// event of the network and the reaction; 0 is the usual one.
	Retry, Settle time.Duration
	// Transition is how long nvme.ANAStateChange lasts.
	Transition time.Duration
	// DrainGroup gives a group that several gateways share away, or lets this target take it again.
	DrainGroup func(group uint32, away bool)
}

// Listeners keeps ports open at the addresses of configured listeners, see ADR 0025. Any goroutine
// may call it; a lock of the caller excludes simultaneous changes of the configuration.
type Listeners struct {
	Config
	mdns      *mdns.Responder
	discovery atomic.Pointer[config.Discovery] // as applied; nil: the default
	// wake, with room for one, ends a pause of heal.
	wake chan struct{}
	stop func() // ends heal; nil before Start

	changing sync.Mutex // held during a change; guards the fields up to mu
	stopped  bool
	frozen   bool // see Freeze
	machine  netif.State
	unread   bool              // the addresses could not be read last time
	ids      map[string]uint16 // port IDs, by name

	mu sync.Mutex // guards the rest; readers hold only mu
	// drained has the names of the ports that must stay closed, and of listeners with all ports.
	drained map[string]bool
	// ana has the states set by hand, by listener and group; nil after close.
	ana map[string]map[uint32]*anaState
	// shared has the states of groups that several gateways share.
	shared map[uint32]*anaState

	// served has the IDs of the ports that an RDMA device has served last.
	served map[uint16]bool

	list []*listener // the most specific first
	// coming are the listeners after an Apply in progress, in order. Their ports stay open.
	coming []*listener
	ports  map[string]*port
}

// New returns Listeners without a port. The caller ends them by Close.
func New(c Config) *Listeners {
	return &Listeners{
		Config: c, mdns: mdns.New(c.Log), wake: make(chan struct{}, 1),
		ports: map[string]*port{}, drained: map[string]bool{},
		served: map[uint16]bool{}, ana: map[string]map[uint32]*anaState{},
		shared: map[uint32]*anaState{},
	}
}

// listener is a configured listener. It is guarded by Listeners.mu.
type listener struct {
	config.Listener
	err error // why it has no port, or not all
	// logged is the text of the error that was logged last, "" for none.
	logged string
	// seen: an interface has had its address, if that is a single one.
	seen bool
	// starting: it is being added; a failure is returned and not logged.
	starting bool
}

// port is an address of a listener. It is guarded by Listeners.mu.
type port struct {
	name   string // the name of the listener, with this address
	id     uint16 // in the discovery log
	l      *listener
	addr   fabric.Addr     // with the real port number once it was open
	open   fabric.Listener // nil while it waits
	err    error           // why it waits
	logged string          // as in listener
	known  bool            // the target has it, and it is in the discovery log
	lost   bool            // it is open, but accepts nothing any more
	handed bool            // the same, because the next process has it
}

// Add opens the ports of a listener. Ports that are not available wait, unless the listener has no
// other and is required. undo removes it again.
func (ls *Listeners) Add(c config.Listener) (undo func() error, err error) {
	l := &listener{Listener: c}
	if err = ls.add(l); err != nil {
		err = fmt.Errorf("%w (on_unavailable: fail)", err)
	}
	if !l.Required {
		err = nil
	}
	return func() error { return ls.remove(c.Name) }, err
}

// Remove closes the ports of a listener that no other one has, and ends their connections. undo
// adds it again; an address that it no longer has is not an error.
func (ls *Listeners) Remove(name string) (undo func() error, err error) {
	before := ls.get(name)
	ls.mu.Lock()
	waited := ls.waits(before) != nil
	ls.mu.Unlock()
	return func() error {
		l := &listener{Listener: before.Listener}
		err := ls.add(l)
		ls.mu.Lock()
		defer ls.mu.Unlock()
		if waited || l.err != nil {
			return nil
		}
		return err
	}, ls.remove(name)
}

// Modify changes the settings of a listener other than its addresses. After an error it is as
// before, or waits, and undo is nil.
func (ls *Listeners) Modify(c config.Listener) (undo func() error, err error) {
	before := ls.get(c.Name).Listener
	if err = ls.modify(c); err != nil {
		return nil, err
	}
	return func() error { return ls.modify(before) }, nil
}

// add returns the error of a listener that has no open port.
func (ls *Listeners) add(l *listener) error {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.mu.Lock()
	ls.list = append(ls.list, l)
	slices.SortFunc(ls.list, bySpecificity)
	l.starting = l.Required
	ls.mu.Unlock()
	_, _, _ = ls.update() // an error would be about another port, which is closed
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.starting = false
	ls.try()
	return ls.waits(l)
}

// waits returns why a listener has no open port, nil if it has one. ls.mu is held.
func (ls *Listeners) waits(l *listener) error {
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

func (ls *Listeners) remove(name string) error {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.mu.Lock()
	ls.list = slices.DeleteFunc(ls.list, func(l *listener) bool { return l.Name == name })
	ls.mu.Unlock()
	_, _, err := ls.update()
	ls.try()
	return err
}

func (ls *Listeners) modify(c config.Listener) error {
	ls.changing.Lock()
	defer ls.changing.Unlock()
	l := ls.get(c.Name)
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

// set gives a listener other settings and reopens ports as necessary. Connections keep their TOS.
func (ls *Listeners) set(l *listener, c config.Listener) error {
	ls.mu.Lock()
	again, tls := l.TOS != c.TOS || l.Stack != c.Stack, l.TLS != c.TLS
	l.Listener = c
	ports := ls.byID()
	errs := []error{ls.applyANA()}
	ls.mu.Unlock()
	for _, p := range ports {
		if again && p.l == l && p.known {
			errs = append(errs, ls.listen(p))
		}
		if tls && p.l == l && p.known {
			ls.Target.SetPortListener(p.id, l.Name, c.TLS)
		}
	}
	return errors.Join(errs...)
}

// listen opens a port, or closes it and opens it again at the same address.
func (ls *Listeners) listen(p *port) error {
	ls.mu.Lock()
	before, addr, required := p.open, p.addr, p.l.Required
	ls.mu.Unlock()
	var err error
	if before != nil {
		err = before.Close()
	}
	ls.mu.Lock()
	p.lost, p.handed = false, false // it may be lost as soon as it is open
	ls.mu.Unlock()
	var open fabric.Listener
	try := func() (err error) {
		open, err = ls.Listen(addr, p.id)
		return err
	}
	switch {
	case err != nil:
	case required:
		err = ls.Patiently(try)
	default:
		err = try() // heal tries again
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p.open, p.err = open, err
	if open != nil {
		p.addr = open.Addr()
		ls.served[p.id] = stackOf(open) == fabric.DeviceStack
	}
	return err
}

// publish tells the target whether a port is open. If it is not, its connections end.
func (ls *Listeners) publish(p *port) (err error) {
	open := p.open != nil
	switch {
	case open == p.known:
	case open:
		err = ls.Target.AddPort(discovery.Port{
			ID: p.id, Addr: p.addr, Listener: p.l.Name, TLS: p.l.TLS,
		})
	default:
		err = ls.Target.RemovePort(p.id)
	}
	p.known = open && err == nil
	return err
}

// Lost is called by a transport when the listener of a port accepts nothing any more.
func (ls *Listeners) Lost(portID uint16) {
	ls.mu.Lock()
	for _, p := range ls.ports {
		p.lost = p.lost || p.id == portID
	}
	ls.mu.Unlock()
	ls.try()
}

// TOSOf returns the type of service of the connections of a port.
func (ls *Listeners) TOSOf(portID uint16) uint8 { return ls.settings(portID).TOS }

// StackOf returns the choice of the RDMA stack of a port.
func (ls *Listeners) StackOf(portID uint16) fabric.Stack { return ls.settings(portID).Stack }

// AwaitsDevice reports whether a port should wait for an RDMA device that is missing now: one has
// served it, or belongs to the interface of its address, and is not ready yet.
func (ls *Listeners) AwaitsDevice(portID uint16) bool {
	ls.mu.Lock()
	served := ls.served[portID]
	var at netip.Addr
	for _, p := range ls.ports {
		if p.id == portID {
			at = p.addr.Addr()
		}
	}
	ls.mu.Unlock()
	if served {
		return true
	}
	m, _ := ls.Network.Read("*")
	return slices.ContainsFunc(m.Addresses, func(a netif.Address) bool {
		for _, interfaces := range m.RDMA {
			if a.Addr == at && slices.Contains(interfaces, a.Interface) {
				return true
			}
		}
		return false
	})
}

// stackOf returns the RDMA stack of an open port; fabric.AnyStack: it has none.
func stackOf(open fabric.Listener) fabric.Stack {
	if rdma, ok := open.(interface{ Stack() fabric.Stack }); ok {
		return rdma.Stack()
	}
	return fabric.AnyStack
}

// RDMAStacks returns the RDMA stacks that serve ports.
func (ls *Listeners) RDMAStacks() (list []string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range ls.byID() {
		if s := stackOf(p.open); s != fabric.AnyStack && !slices.Contains(list, s.String()) {
			list = append(list, s.String())
		}
	}
	return list
}

// TLSOf reports whether new connections of a port use TLS.
func (ls *Listeners) TLSOf(portID uint16) fabric.TLSPolicy { return ls.settings(portID).TLS }

// settings returns the settings of the listener that has a port. A port that is being closed has
// none, and takes no connection without TLS.
func (ls *Listeners) settings(portID uint16) config.Listener {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range ls.ports {
		if p.id == portID {
			return p.l.Listener
		}
	}
	return config.Listener{TLS: fabric.TLSRequired}
}

// get returns the listener with this name, which exists.
func (ls *Listeners) get(name string) *listener {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.list[slices.IndexFunc(ls.list, func(l *listener) bool { return l.Name == name })]
}

// Occupy reports whether an open port has an address, or all addresses if that is one of them.
func (ls *Listeners) Occupy(at fabric.Addr) bool {
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
func (ls *Listeners) byID() []*port {
	return slices.SortedFunc(maps.Values(ls.ports),
		func(a, b *port) int { return cmp.Compare(a.id, b.id) })
}

// Addrs returns the addresses of the open ports with real port numbers, and the names of ports and
// of listeners without ports that wait.
func (ls *Listeners) Addrs() (up []fabric.Addr, waiting []string) {
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
		if l.err != nil && !ls.drained[l.Name] {
			waiting = append(waiting, l.Name)
		}
	}
	return up, waiting
}

// Encrypted reports whether hosts need TLS at an address of Addrs.
func (ls *Listeners) Encrypted(addr fabric.Addr) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, p := range ls.ports {
		if p.open != nil && p.addr == addr {
			return p.l.TLS == fabric.TLSRequired
		}
	}
	return false
}

// never reports whether a listener will not start, however long it is waited for.
func never(err error) bool { return errors.Is(err, verbs.ErrNotBuilt) }

// Close closes the ports; connections stay. Sockets that are kept stay open for the next program.
func (ls *Listeners) Close() error {
	if ls.Sockets != nil {
		ls.Sockets.end()
	}
	if ls.stop != nil {
		ls.stop()
	}
	ls.changing.Lock()
	defer ls.changing.Unlock()
	ls.stopped = true
	ls.mdns.Close()
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
