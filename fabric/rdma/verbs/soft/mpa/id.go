package mpa

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
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

// state is the state of an ID.
type state uint8

const (
	idNew state = iota
	idListening
	idResolved   // has a local address and a device
	idRouted     // may connect
	idConnecting // waits for the reply
	idRequested  // the program has not answered the request
	idAccepted   // waits for the RTR
	idEstablished
	idDone
)

// ID is a verbs.ID: a listener or one connection.
type ID struct {
	m         *Manager
	cm        *channel
	ctx       any
	state     state
	destroyed bool
	bound     bool // to the device
	local     netip.AddrPort
	remote    netip.AddrPort
	qp        *qp
	link      *link // nil if the queue pair has no socket

	// of a listener
	listener         listener
	backlog, pending int
	// of a request: the connection until it is accepted, the frame, the listener until Next
	// returns it, and whether it counts for its host.
	conn    net.Conn
	request *frame
	parent  *ID
	counted bool
	timer   *time.Timer // of the RTR
	// of a connection that is being made
	cancel context.CancelFunc
}

// qp is the queue pair of an ID.
type qp struct {
	QP
	id *ID
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
	if id.destroyed {
		return
	}
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

// ResolveAddr chooses the local address. The system needs no time for it.
func (id *ID) ResolveAddr(src, dst netip.AddrPort, _ time.Duration) error {
	m := id.m
	from := src.Addr()
	if from.IsValid() && from.IsUnspecified() {
		from = netip.Addr{}
	}
	var local netip.Addr
	err := error(unix.EINVAL)
	if dst.Addr().IsValid() {
		local, _, err = m.net.Route(from, dst.Addr())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.state != idNew || !dst.Addr().IsValid() {
		return fmt.Errorf("resolve %v: %w", dst, unix.EINVAL)
	}
	if err != nil {
		id.state = idDone
		id.post(verbs.Event{Type: verbs.EventAddrError, Status: status(err, unix.EHOSTUNREACH)})
		return nil
	}
	id.local, id.remote = netip.AddrPortFrom(local, src.Port()), dst
	id.state, id.bound = idResolved, true
	id.post(verbs.Event{Type: verbs.EventAddrResolved})
	return nil
}

// status returns the negative errno of an error, or of another one if it has none.
func status(err error, other unix.Errno) int {
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return -int(e)
	}
	return -int(other)
}

// ResolveRoute has nothing to do: TCP finds the route.
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
		(id.state == idResolved || id.state == idRouted || id.state == idRequested)
	m.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("create queue pair: no address, or the request is withdrawn: %w",
			unix.EINVAL)
	}
	inner, err := m.dev.NewQP(pd, init)
	if err != nil {
		return nil, err
	}
	q := &qp{QP: inner, id: id}
	m.mu.Lock()
	id.qp = q
	m.mu.Unlock()
	return q, nil
}

// connect gives the socket of a connection to the queue pair, and returns the rest of the work.
// m.mu is held.
func (id *ID) connect(c net.Conn, p Peer) error {
	if id.qp == nil {
		_ = c.Close()
		return fmt.Errorf("no queue pair: %w", unix.EINVAL)
	}
	fd, err := takeFD(c)
	if err != nil {
		return err
	}
	m, l := id.m, &link{fd: fd}
	p.FD = fd
	p.First = func() { m.note(note{id: id}) }
	p.Ended = func(drain bool) { m.note(note{id: id, link: l, drain: drain}) }
	if err := id.qp.QP.Connect(p); err != nil {
		_ = unix.Close(fd)
		return err
	}
	id.link = l
	return nil
}

// ready notes that the first message of the peer has arrived. m.mu is held.
func (id *ID) ready() {
	if id.state != idAccepted {
		return
	}
	id.timer.Stop()
	id.establish(verbs.ConnParam{})
}

func (id *ID) establish(p verbs.ConnParam) {
	id.state = idEstablished
	id.uncount()
	id.post(verbs.Event{Type: verbs.EventEstablished, Param: p})
}

// uncount ends the count of a connection that is not established.
func (id *ID) uncount() {
	if id.counted {
		id.counted = false
		id.m.leave(plain(id.remote.Addr()))
	}
}

// ended notes that the queue pair has given its socket back. m.mu is held.
func (id *ID) ended(l *link) {
	if id.link != l {
		return
	}
	id.link = nil
	switch id.state {
	case idEstablished:
		id.state = idDone
		id.post(verbs.Event{Type: verbs.EventDisconnected})
	case idAccepted:
		id.timer.Stop()
		id.state = idDone
		id.uncount()
		id.post(verbs.Event{Type: verbs.EventConnectError, Status: -int(unix.ECONNRESET)})
	}
}

// Disconnect makes the queue pair fail, which closes the connection.
func (id *ID) Disconnect() error {
	m := id.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.qp != nil {
		_ = id.qp.QP.ToError() // it may be in the error state already
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
	if id.listener.TCPListener != nil {
		m.closeListener(id.listener)
		for _, ev := range slices.Clone(id.cm.queue) {
			if ev.Type == verbs.EventConnectRequest && ev.Listener == verbs.ID(id) {
				ev.ID.(*ID).destroy() // nobody else will
			}
		}
	}
	id.destroy()
	return nil
}

// destroy forgets the ID and its events.
func (id *ID) destroy() {
	id.destroyed = true
	id.cm.ids--
	id.cm.queue = slices.DeleteFunc(id.cm.queue,
		func(ev verbs.Event) bool { return ev.ID == verbs.ID(id) })
	if id.timer != nil {
		id.timer.Stop()
	}
	if id.cancel != nil {
		id.cancel()
	}
	if id.conn != nil {
		id.reply(&frame{flags: flagReject})
	}
	id.uncount()
	if id.qp != nil {
		_ = id.qp.QP.ToError()
	}
	id.state = idDone
}
