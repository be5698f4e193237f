package cm

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/soft/wire"
)

// channel is an event channel: a verbs.CM.
type channel struct {
	m      *Manager
	wake   sync.Cond // on Manager.mu
	queue  []verbs.Event
	ids    int
	closed bool
}

// NewCM opens a communication manager with its own event channel.
func (m *Manager) NewCM() (verbs.CM, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return nil, m.err
	}
	c := &channel{m: m}
	c.wake.L = &m.mu
	return c, nil
}

func (c *channel) Next() (verbs.Event, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for !c.closed && len(c.queue) == 0 {
		c.wake.Wait()
	}
	if c.closed {
		return verbs.Event{}, verbs.ErrClosed
	}
	ev := c.queue[0]
	c.queue = slices.Delete(c.queue, 0, 1)
	if ev.Type == verbs.EventConnectRequest {
		id := ev.ID.(*ID)
		id.parent.pending--
		id.parent = nil
	}
	return ev, nil
}

func (c *channel) Close() error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if !c.closed && c.ids > 0 {
		return fmt.Errorf("close event channel: %d IDs use it: %w", c.ids, unix.EBUSY)
	}
	c.closed = true
	c.wake.Broadcast()
	return nil
}

// idState is the state of an ID without a connection.
type idState uint8

const (
	idNew idState = iota
	idListening
	idResolved // has a local address and a device
	idRouted   // may connect
	idDone     // has a connection, or had one
)

// ID is a verbs.ID: a listener or one connection.
type ID struct {
	m         *Manager
	cm        *channel
	ctx       any
	state     idState
	destroyed bool
	bound     bool // to the device
	local     netip.AddrPort
	remote    netip.AddrPort
	mtu       int
	qp        *qp
	conn      *conn

	// of a listener
	backlog, pending int
	// of a request that Next has not returned yet
	parent *ID
}

// qp is the queue pair of an ID.
type qp struct {
	QP
	id  *ID
	srq bool
}

func (q *qp) Destroy() error {
	m := q.id.m
	m.mu.Lock()
	q.id.qp = nil
	m.mu.Unlock()
	err := q.QP.Destroy()
	if err != nil {
		m.mu.Lock()
		q.id.qp = q
		m.mu.Unlock()
	}
	return err
}

func (c *channel) newID() *ID {
	c.ids++
	return &ID{m: c.m, cm: c}
}

func (c *channel) NewID() (verbs.ID, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.closed {
		return nil, verbs.ErrClosed
	}
	return c.newID(), nil
}

// post sends an event to the channel of the ID.
func (id *ID) post(ev verbs.Event) {
	ev.ID = id
	id.cm.queue = append(id.cm.queue, ev)
	id.cm.wake.Signal()
}

func (id *ID) SetContext(v any) { id.ctx = v }
func (id *ID) Context() any     { return id.ctx }

func (id *ID) Device() verbs.Device {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if !id.bound {
		return nil
	}
	return id.m.dev
}

func (id *ID) Local() netip.AddrPort {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	return id.local
}

func (id *ID) Remote() netip.AddrPort {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	return id.remote
}

// ephemeral is the first port that is chosen for a program.
const ephemeral = 49152

func ephemeralPort() uint16 { return uint16(ephemeral + random64()%(1<<16-ephemeral)) }

func (c *channel) Listen(addr netip.AddrPort, backlog int, _ uint8) (verbs.ID, error) {
	m := c.m
	fail := func(err error) (verbs.ID, error) {
		return nil, fmt.Errorf("listen at %v: %w", addr, err)
	}
	a := addr.Addr()
	if !a.IsValid() {
		return fail(unix.EINVAL)
	}
	if !a.IsUnspecified() {
		list, err := m.net.Addrs()
		if err != nil {
			return fail(err)
		}
		is := func(i wire.Interface) bool { return plain(i.Addr) == plain(a) }
		if !slices.ContainsFunc(list, is) {
			return fail(verbs.ErrNoDevice)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.closed {
		return fail(verbs.ErrClosed)
	}
	taken := func(port uint16) bool {
		return slices.ContainsFunc(m.listeners, func(l *ID) bool {
			return l.local.Port() == port && (takes(l.local.Addr(), a) || takes(a, l.local.Addr()))
		})
	}
	port := addr.Port()
	for try := 0; addr.Port() == 0 && (try == 0 || taken(port)) && try < 1000; try++ {
		port = ephemeralPort()
	}
	if taken(port) {
		return fail(unix.EADDRINUSE)
	}
	if backlog <= 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	id := c.newID()
	id.state, id.local, id.backlog = idListening, netip.AddrPortFrom(a, port), backlog
	id.bound = !a.IsUnspecified()
	m.listeners = append(m.listeners, id)
	return id, nil
}

// maxBacklog is the largest number of requests that Next has not returned
// (drivers/infiniband/core/ucma.c, max_backlog).
const maxBacklog = 1024

// takes reports whether a listener gets the requests for an address. :: takes IPv4 as well.
func takes(listen, to netip.Addr) bool {
	listen, to = plain(listen), plain(to)
	return listen == to || listen.IsUnspecified() && (listen.Is6() || to.Is4())
}

// listener finds the ID that listens at an address, rather a specific one than a wildcard.
func (m *Manager) listener(to netip.AddrPort) (found *ID) {
	for _, l := range m.listeners {
		if l.local.Port() == to.Port() && takes(l.local.Addr(), to.Addr()) &&
			(found == nil || found.local.Addr().IsUnspecified()) {
			found = l
		}
	}
	return found
}

// ResolveAddr chooses the local address. The system needs no time for it.
func (id *ID) ResolveAddr(src, dst netip.AddrPort, _ time.Duration) error {
	m := id.m
	from := src.Addr()
	if from.IsValid() && from.IsUnspecified() {
		from = netip.Addr{}
	}
	var local netip.Addr
	var mtu int
	err := error(unix.EINVAL)
	if dst.Addr().IsValid() {
		local, mtu, err = m.net.Route(from, dst.Addr())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.state != idNew || !dst.Addr().IsValid() {
		return fmt.Errorf("resolve %v: %w", dst, unix.EINVAL)
	}
	if err != nil {
		id.state = idDone
		errno := unix.EHOSTUNREACH
		if e, ok := errors.AsType[unix.Errno](err); ok {
			errno = e
		}
		id.post(verbs.Event{Type: verbs.EventAddrError, Status: -int(errno)})
		return nil
	}
	port := src.Port()
	if port == 0 {
		port = ephemeralPort()
	}
	id.local, id.remote, id.mtu = netip.AddrPortFrom(local, port), dst, mtu
	id.state, id.bound = idResolved, true
	id.post(verbs.Event{Type: verbs.EventAddrResolved})
	return nil
}

// ResolveRoute has nothing to do: Ethernet needs no path record.
func (id *ID) ResolveRoute(time.Duration) error {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if id.state != idResolved {
		return fmt.Errorf("resolve route to %v: %w", id.remote, unix.EINVAL)
	}
	id.state = idRouted
	id.post(verbs.Event{Type: verbs.EventRouteResolved})
	return nil
}

func (id *ID) CreateQP(pd verbs.PD, init verbs.QPInit) (verbs.QP, error) {
	m := id.m
	m.mu.Lock()
	ok := !id.destroyed && id.qp == nil &&
		(id.state == idResolved || id.state == idRouted || id.conn != nil)
	m.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("create queue pair: no address, or the request is withdrawn: %w",
			unix.EINVAL)
	}
	inner, err := m.dev.NewQP(pd, init)
	if err != nil {
		return nil, err
	}
	q := &qp{QP: inner, id: id, srq: init.SRQ != nil}
	m.mu.Lock()
	id.qp = q
	m.mu.Unlock()
	return q, nil
}

func (id *ID) Disconnect() error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.qp != nil {
		_ = id.qp.QP.ToError() // it may be in the error state already
	}
	if c := id.conn; c != nil {
		switch c.state {
		case established:
			c.disconnect()
		case dreqReceived:
			c.release()
		}
		m.flush()
	}
	return nil
}

func (id *ID) Destroy() error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.destroyed {
		return fmt.Errorf("destroy ID: a second time: %w", unix.EINVAL)
	}
	if id.state == idListening {
		m.listeners = slices.DeleteFunc(m.listeners, func(l *ID) bool { return l == id })
		for _, ev := range slices.Clone(id.cm.queue) {
			if ev.Type == verbs.EventConnectRequest && ev.Listener == verbs.ID(id) {
				ev.ID.(*ID).destroy() // nobody else will
			}
		}
	}
	id.destroy()
	m.flush()
	return nil
}

// destroy forgets the ID and its events.
func (id *ID) destroy() {
	id.destroyed = true
	id.cm.ids--
	id.cm.queue = slices.DeleteFunc(id.cm.queue,
		func(ev verbs.Event) bool { return ev.ID == verbs.ID(id) })
	if id.conn != nil {
		id.conn.drop()
	}
}
