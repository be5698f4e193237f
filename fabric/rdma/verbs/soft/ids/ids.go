// Package ids is the part of the connection managers that is common to RoCE and iWARP: event
// channels, and IDs with their addresses, states and queue pairs. Each manager has one lock. It is
// held during all functions that do not take it.
package ids

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

// A Device makes queue pairs to connect, of type Q.
type Device[Q verbs.QP] interface {
	verbs.Device
	NewQP(pd verbs.PD, init verbs.QPInit) (Q, error)
}

// A Channel is an event channel: a verbs.CM without Listen.
type Channel[Q verbs.QP] struct {
	Lock *sync.Mutex // of the manager
	Net  wire.Network
	Dev  Device[Q]
	// Make makes an ID, and calls Init.
	Make func() verbs.ID
	// Port chooses the local port of a connection; nil leaves it to the system.
	Port   func() uint16
	Closed bool

	wake  sync.Cond
	queue []verbs.Event
	n     int // IDs
}

// Open completes a channel after its exported fields are set.
func (c *Channel[Q]) Open() { c.wake.L = c.Lock }

// NewID implements verbs.CM.
func (c *Channel[Q]) NewID() (verbs.ID, error) {
	c.Lock.Lock()
	defer c.Lock.Unlock()
	if c.Closed {
		return nil, verbs.ErrClosed
	}
	return c.Make(), nil
}

// Next implements verbs.CM.
func (c *Channel[Q]) Next() (verbs.Event, error) {
	c.Lock.Lock()
	defer c.Lock.Unlock()
	for !c.Closed && len(c.queue) == 0 {
		c.wake.Wait()
	}
	if c.Closed {
		return verbs.Event{}, verbs.ErrClosed
	}
	ev := c.queue[0]
	c.queue = slices.Delete(c.queue, 0, 1)
	if ev.Type == verbs.EventConnectRequest {
		ev.ID.(interface{ Withdraw() bool }).Withdraw() // it no longer counts for the listener
	}
	return ev, nil
}

// Close implements verbs.CM.
func (c *Channel[Q]) Close() error {
	c.Lock.Lock()
	defer c.Lock.Unlock()
	if !c.Closed && c.n > 0 {
		return fmt.Errorf("close event channel: %d IDs use it: %w", c.n, unix.EBUSY)
	}
	c.Closed = true
	c.wake.Broadcast()
	return nil
}

// Count returns the numbers of IDs and of events that wait.
func (c *Channel[Q]) Count() (ids, events int) { return c.n, len(c.queue) }

// Usable returns the error of listening at an address.
func (c *Channel[Q]) Usable(a netip.Addr) error {
	switch {
	case !a.IsValid():
		return unix.EINVAL
	case a.IsUnspecified():
		return nil
	}
	list, err := c.Net.Addrs()
	is := func(b netip.Addr) bool { return Plain(b) == Plain(a) }
	if err == nil && !slices.ContainsFunc(list, is) {
		err = verbs.ErrNoDevice
	}
	return err
}

// maxBacklog is the largest number of requests that Next has not returned
// (drivers/infiniband/core/ucma.c, max_backlog).
const maxBacklog = 1024

// A State is the state of an ID. Those after Routed depend on the protocol.
type State uint8

// The states of an ID.
const (
	New State = iota
	Listening
	Resolved   // has a local address and a device
	Routed     // may connect
	Connecting // waits for the reply
	Requested  // the program has not answered the request
	Accepted   // waits for the first message of the peer
	Established
	Done
)

// An ID is the base of a verbs.ID: a listener or one connection.
type ID[Q verbs.QP] struct {
	Channel   *Channel[Q]
	State     State
	Destroyed bool
	Bound     bool // to the device
	From, To  netip.AddrPort
	MTU       int
	QP        *QP[Q]

	self verbs.ID
	ctx  any
	// of a listener: the requests that Next has not returned, and their largest number
	Pending, backlog int
	parent           *ID[Q] // of such a request
}

// Init begins the use of a channel by an ID.
func (id *ID[Q]) Init(c *Channel[Q], self verbs.ID) {
	id.Channel, id.self = c, self
	c.n++
}

// Listen makes a listener of an ID. ErrClosed if the channel is closed.
func (id *ID[Q]) Listen(at netip.AddrPort, backlog int) {
	if backlog <= 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	id.State, id.From, id.backlog, id.Bound = Listening, at, backlog, !at.Addr().IsUnspecified()
}

// Full reports whether a listener has no room for a request.
func (id *ID[Q]) Full() bool { return id.Pending >= id.backlog }

// Request makes an ID the request of a peer to a listener.
func (id *ID[Q]) Request(l *ID[Q], from, to netip.AddrPort, p verbs.ConnParam) {
	id.State, id.parent, id.Bound, id.From, id.To = Requested, l, true, from, to
	l.Pending++
	id.Post(verbs.Event{Type: verbs.EventConnectRequest, Listener: l.self, Param: p})
}

// Withdraw ends the count of a request. It reports whether Next has not returned it.
func (id *ID[Q]) Withdraw() bool {
	l := id.parent
	if l != nil {
		l.Pending--
		id.parent = nil
	}
	return l != nil
}

// Requests returns the requests to a listener that Next has not returned.
func (id *ID[Q]) Requests() (list []verbs.ID) {
	for _, ev := range id.Channel.queue {
		if ev.Type == verbs.EventConnectRequest && ev.Listener == id.self {
			list = append(list, ev.ID)
		}
	}
	return list
}

// Post sends an event to the channel.
func (id *ID[Q]) Post(ev verbs.Event) {
	if !id.Destroyed {
		ev.ID = id.self
		id.Channel.queue = append(id.Channel.queue, ev)
		id.Channel.wake.Signal()
	}
}

// Forget ends the use of the channel, and forgets the events.
func (id *ID[Q]) Forget() {
	c := id.Channel
	id.Destroyed = true
	c.n--
	c.queue = slices.DeleteFunc(c.queue, func(ev verbs.Event) bool { return ev.ID == id.self })
}

// A Dropper forgets an ID, and its state in the protocol. The lock is held.
type Dropper interface{ Drop() }

// Destroy implements verbs.ID. The requests to a listener that Next has not returned end with it.
func (id *ID[Q]) Destroy() error {
	id.Channel.Lock.Lock()
	defer id.Channel.Lock.Unlock()
	if id.Destroyed {
		return fmt.Errorf("destroy ID: a second time: %w", unix.EINVAL)
	}
	for _, r := range id.Requests() {
		r.(Dropper).Drop()
	}
	id.self.(Dropper).Drop()
	return nil
}

func (id *ID[Q]) SetContext(v any) { id.ctx = v }
func (id *ID[Q]) Context() any     { return id.ctx }

// Device implements verbs.ID.
func (id *ID[Q]) Device() verbs.Device {
	id.Channel.Lock.Lock()
	defer id.Channel.Lock.Unlock()
	if !id.Bound {
		return nil
	}
	return id.Channel.Dev
}

// Local implements verbs.ID.
func (id *ID[Q]) Local() netip.AddrPort {
	id.Channel.Lock.Lock()
	defer id.Channel.Lock.Unlock()
	return id.From
}

// Remote implements verbs.ID.
func (id *ID[Q]) Remote() netip.AddrPort {
	id.Channel.Lock.Lock()
	defer id.Channel.Lock.Unlock()
	return id.To
}

// ResolveAddr chooses the local address. The system needs no time for it.
func (id *ID[Q]) ResolveAddr(src, dst netip.AddrPort, _ time.Duration) error {
	c, from := id.Channel, src.Addr()
	if from.IsValid() && from.IsUnspecified() {
		from = netip.Addr{}
	}
	var local netip.Addr
	var mtu int
	err := error(unix.EINVAL)
	if dst.Addr().IsValid() {
		local, mtu, err = c.Net.Route(from, dst.Addr())
	}
	c.Lock.Lock()
	defer c.Lock.Unlock()
	if id.State != New || !dst.Addr().IsValid() {
		return fmt.Errorf("resolve %v: %w", dst, unix.EINVAL)
	}
	if err != nil {
		id.State = Done
		id.Post(verbs.Event{Type: verbs.EventAddrError, Status: Status(err, unix.EHOSTUNREACH)})
		return nil
	}
	port := src.Port()
	if port == 0 && c.Port != nil {
		port = c.Port()
	}
	id.From, id.To, id.MTU = netip.AddrPortFrom(local, port), dst, mtu
	id.State, id.Bound = Resolved, true
	id.Post(verbs.Event{Type: verbs.EventAddrResolved})
	return nil
}

// ResolveRoute has nothing to do: the system finds the route.
func (id *ID[Q]) ResolveRoute(time.Duration) error {
	id.Channel.Lock.Lock()
	defer id.Channel.Lock.Unlock()
	if id.State != Resolved {
		return fmt.Errorf("resolve route to %v: %w", id.To, unix.EINVAL)
	}
	id.State = Routed
	id.Post(verbs.Event{Type: verbs.EventRouteResolved})
	return nil
}

// A QP is the queue pair of an ID. Of is the same one.
type QP[Q verbs.QP] struct {
	verbs.QP
	Of  Q
	SRQ bool
	id  *ID[Q]
}

// CreateQP implements verbs.ID.
func (id *ID[Q]) CreateQP(pd verbs.PD, init verbs.QPInit) (verbs.QP, error) {
	if !id.take(nil) {
		return nil, errCreate
	}
	inner, err := id.Channel.Dev.NewQP(pd, init)
	if err != nil {
		return nil, err
	}
	q := &QP[Q]{QP: inner, Of: inner, SRQ: init.SRQ != nil, id: id}
	if !id.take(q) { // another call was faster, or the ID has gone
		return nil, errors.Join(errCreate, inner.Destroy())
	}
	return q, nil
}

var errCreate = fmt.Errorf("create queue pair: no address, a second one, or the request is "+
	"withdrawn: %w", unix.EINVAL)

// take sets the queue pair of the ID, and reports whether the ID can have one.
func (id *ID[Q]) take(q *QP[Q]) bool {
	id.Channel.Lock.Lock()
	defer id.Channel.Lock.Unlock()
	ok := !id.Destroyed && id.QP == nil &&
		(id.State == Resolved || id.State == Routed || id.State == Requested)
	if ok {
		id.QP = q
	}
	return ok
}

func (q *QP[Q]) set(to *QP[Q]) {
	q.id.Channel.Lock.Lock()
	defer q.id.Channel.Lock.Unlock()
	q.id.QP = to
}

// Destroy implements verbs.QP.
func (q *QP[Q]) Destroy() error {
	q.set(nil)
	err := q.QP.Destroy()
	if err != nil {
		q.set(q)
	}
	return err
}

// Fail makes the queue pair fail, if there is one.
func (id *ID[Q]) Fail() {
	if id.QP != nil {
		_ = id.QP.ToError() // it may be in the error state already
	}
}

// Check checks a Connect, Accept or Reject, with at most private bytes of private data. has reports
// whether the ID has what the call needs.
func (id *ID[Q]) Check(call string, p *verbs.ConnParam, private int, has bool, needs string) error {
	why, a := "", id.Channel.Dev.Attr()
	switch {
	case !has:
		why = "no " + needs
	case len(p.PrivateData) > private:
		why = fmt.Sprintf("%d bytes of private data, at most %d", len(p.PrivateData), private)
	case int(p.ResponderResources) > a.MaxQPRdAtom || int(p.InitiatorDepth) > a.MaxQPInitRdAtom:
		why = fmt.Sprintf("responder resources %d of %d, initiator depth %d of %d",
			p.ResponderResources, a.MaxQPRdAtom, p.InitiatorDepth, a.MaxQPInitRdAtom)
	default:
		return nil
	}
	return fmt.Errorf("%s %v: %s: %w", call, id.To, why, unix.EINVAL)
}

// Status returns the negative errno of an error, or of another one if it has none.
func Status(err error, other unix.Errno) int {
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return -int(e)
	}
	return -int(other)
}

// Plain makes addresses comparable: only one of them may have a zone.
func Plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
