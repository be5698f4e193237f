package verbstest

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// cm is a communication manager: an event channel of a machine.
type cm struct {
	host   *host
	cond   sync.Cond // on the fabric's lock
	queue  []queued
	ids    int
	closed bool
}

// queued is an event that Next will return. take does the work of librdmacm when the event is read.
// If it returns false, the event is dropped.
type queued struct {
	ev   verbs.Event
	id   *cmID
	take func(ev *verbs.Event) bool
}

func (p *provider) NewCM() (verbs.CM, error) {
	h := p.h
	h.f.lock()
	defer h.f.unlock()
	if err := h.fault(CallCreateCM); err != nil {
		return nil, err
	}
	if len(h.devices) == 0 {
		return nil, fmt.Errorf("%s: machine %q has no devices: %w", CallCreateCM, h.name,
			verbs.ErrNoDevice)
	}
	c := &cm{host: h}
	c.cond.L = &h.f.mu
	h.live.CMs++
	return c, nil
}

func (c *cm) Next() (verbs.Event, error) {
	f := c.host.f
	f.lock()
	defer f.unlock()
	for {
		if c.closed {
			return verbs.Event{}, verbs.ErrClosed
		}
		if len(c.queue) == 0 {
			if f.run != nil { // work made possible by take must not wait for Next
				f.runAll()
			}
			c.cond.Wait()
			continue
		}
		e := c.queue[0]
		c.queue = slices.Delete(c.queue, 0, 1)
		if e.id.freed || e.take != nil && !e.take(&e.ev) {
			continue
		}
		return e.ev, nil
	}
}

func (c *cm) Close() error {
	f := c.host.f
	f.lock()
	defer f.unlock()
	if c.closed {
		return nil
	}
	if c.ids > 0 {
		return fmt.Errorf("rdma_destroy_event_channel: %d IDs use it: %w", c.ids, unix.EBUSY)
	}
	c.closed = true
	c.host.live.CMs--
	c.cond.Broadcast()
	return nil
}

// idState is the state of a communication identifier.
type idState uint8

const (
	idIdle idState = iota
	idListening
	idResolved  // has a device
	idRouted    // may connect
	idReqSent   // waits for the answer to its request
	idReqRcvd   // a request to be accepted or rejected
	idRepSent   // accepted; waits for the confirmation of the active side
	idConnected // established
	idDreqSent  // disconnected, waits for the answer
	idDreqRcvd  // the peer disconnected
	idDone      // rejected, failed or disconnected
)

type cmID struct {
	cm            *cm
	dev           *device
	state         idState
	local, remote netip.AddrPort
	ctx           any
	qp            *qp
	peer          *cmID
	request       verbs.ConnParam // sent by this side in its REQ, or of the peer as seen from here
	tos           uint8
	freed         bool
	expire        func()      // called at the timeout of the state
	timer         *time.Timer // of expire

	// of a listener
	backlog, pending int
	parent           *cmID // of a connection request that Next has not returned yet
}

func (c *cm) newID() *cmID {
	id := &cmID{cm: c}
	c.ids++
	c.host.live.IDs++
	c.host.ids = append(c.host.ids, id)
	return id
}

func (c *cm) NewID() (verbs.ID, error) {
	f := c.host.f
	f.lock()
	defer f.unlock()
	if c.closed {
		return nil, fmt.Errorf("%s: %w", CallCreateID, verbs.ErrClosed)
	}
	if err := c.host.fault(CallCreateID); err != nil {
		return nil, err
	}
	return c.newID(), nil
}

func (id *cmID) SetContext(v any) { id.ctx = v }
func (id *cmID) Context() any     { return id.ctx }

func (id *cmID) Device() verbs.Device {
	id.cm.host.f.lock()
	defer id.cm.host.f.unlock()
	if id.dev == nil {
		return nil
	}
	return id.dev
}

func (id *cmID) Local() netip.AddrPort {
	id.cm.host.f.lock()
	defer id.cm.host.f.unlock()
	return id.local
}

func (id *cmID) Remote() netip.AddrPort {
	id.cm.host.f.lock()
	defer id.cm.host.f.unlock()
	return id.remote
}

// TOS returns the configured type of service. Tests reach it by a type assertion.
func (id *cmID) TOS() uint8 {
	id.cm.host.f.lock()
	defer id.cm.host.f.unlock()
	return id.tos
}

// post sends an event to the ID's channel.
func (id *cmID) post(ev verbs.Event) { id.postTake(ev, nil) }

func (id *cmID) postTake(ev verbs.Event, take func(*verbs.Event) bool) {
	if id.freed || id.cm.closed {
		return
	}
	ev.ID = id
	id.cm.queue = append(id.cm.queue, queued{ev, id, take})
	id.cm.cond.Signal()
}

// set changes the state. The timer of the previous state has no effect, and keeps no memory.
func (id *cmID) set(s idState) {
	id.state = s
	if id.timer != nil {
		id.timer.Stop()
	}
	id.expire, id.timer = nil, nil
}

// timeout calls fn if the ID is still in this state after d, or when ExpireCM is called.
func (id *cmID) timeout(d time.Duration, fn func()) {
	var t *time.Timer
	t = id.cm.host.f.after(d, func() {
		if id.timer == t {
			id.expired()
		}
	})
	id.expire, id.timer = fn, t
}

func (id *cmID) expired() {
	fn := id.expire
	if fn != nil && !id.freed {
		id.expire = nil
		fn()
	}
}

func (c *cm) Listen(addr netip.AddrPort, backlog int, tos uint8) (verbs.ID, error) {
	h := c.host
	h.f.lock()
	defer h.f.unlock()
	if c.closed {
		return nil, fmt.Errorf("%s: %w", CallListen, verbs.ErrClosed)
	}
	if err := h.fault(CallListen); err != nil {
		return nil, err
	}
	var dev *device
	if !addr.Addr().IsValid() {
		return nil, fmt.Errorf("%s: no address: %w", CallListen, unix.EINVAL)
	}
	if !addr.Addr().IsUnspecified() {
		if dev = h.find(addr.Addr()); dev == nil {
			return nil, fmt.Errorf("rdma_bind_addr %v: %w", addr, verbs.ErrNoDevice)
		}
	}
	if addr.Port() == 0 {
		addr = netip.AddrPortFrom(addr.Addr(), h.port())
	}
	for _, x := range h.ids {
		if x.state == idListening && x.local.Port() == addr.Port() &&
			overlap(x.local.Addr(), addr.Addr()) {
			return nil, fmt.Errorf("rdma_bind_addr %v: %w", addr, unix.EADDRINUSE)
		}
	}
	if backlog <= 0 || backlog > 1024 {
		backlog = 1024 // drivers/infiniband/core/ucma.c, max_backlog
	}
	id := c.newID()
	id.dev, id.local, id.backlog, id.tos = dev, addr, backlog, tos
	id.set(idListening)
	return id, nil
}

// overlap reports whether two listeners on one port would both get a request. :: takes IPv4 as
// well.
func overlap(a, b netip.Addr) bool {
	a, b = a.Unmap().WithZone(""), b.Unmap().WithZone("")
	return takes(a, b) || takes(b, a)
}

func takes(listen, dst netip.Addr) bool {
	return listen == dst || listen.IsUnspecified() && (listen.Is6() || dst.Is4())
}

// port chooses a free port.
func (h *host) port() uint16 {
	for {
		h.nextPort++
		if h.nextPort < 49152 {
			h.nextPort = 49152
		}
		if !slices.ContainsFunc(h.ids, func(x *cmID) bool { return x.local.Port() == h.nextPort }) {
			return h.nextPort
		}
	}
}

// listener finds the ID that listens at an address. A specific address takes precedence over a
// wildcard.
func (h *host) listener(dst netip.AddrPort) (found *cmID) {
	addr := dst.Addr().Unmap().WithZone("")
	for _, x := range h.ids {
		if x.state != idListening || x.local.Port() != dst.Port() {
			continue
		}
		at := x.local.Addr().Unmap().WithZone("")
		if at == addr {
			return x
		}
		if takes(at, addr) {
			found = x
		}
	}
	return found
}

func (id *cmID) ResolveAddr(src, dst netip.AddrPort, _ time.Duration) error {
	h := id.cm.host
	h.f.lock()
	defer h.f.unlock()
	if err := h.fault(CallResolveAddr); err != nil {
		return err
	}
	if id.state != idIdle || !dst.Addr().IsValid() {
		return fmt.Errorf("%s: %w", CallResolveAddr, unix.EINVAL)
	}
	id.dev = h.source(src.Addr(), dst.Addr())
	to := h.f.find(dst.Addr())
	if id.dev == nil || to == nil {
		errno := unix.EHOSTUNREACH
		if id.dev == nil {
			errno = unix.ENODEV
		}
		id.set(idDone)
		id.post(verbs.Event{Type: verbs.EventAddrError, Status: -int(errno)})
		return nil
	}
	local := src
	if !local.Addr().IsValid() || local.Addr().IsUnspecified() {
		local = netip.AddrPortFrom(id.dev.addr(dst.Addr()), src.Port())
	}
	if local.Port() == 0 {
		local = netip.AddrPortFrom(local.Addr(), h.port())
	}
	id.local, id.remote = local, dst
	id.set(idResolved)
	id.post(verbs.Event{Type: verbs.EventAddrResolved})
	return nil
}

// source chooses the device to reach dst from.
func (h *host) source(src, dst netip.Addr) *device {
	if src.IsValid() && !src.IsUnspecified() {
		return h.find(src)
	}
	// Prefer the device that can reach the other end, then any of the family.
	to := h.f.find(dst)
	var any *device
	for _, d := range h.devices {
		if d.removed || !d.addr(dst).IsValid() {
			continue
		}
		if to == nil || d == to || d.opt.Attr.IWARP == to.opt.Attr.IWARP {
			return d
		}
		any = d
	}
	return any
}

// addr returns the device's address in the family of dst.
func (d *device) addr(dst netip.Addr) netip.Addr {
	for _, a := range d.opt.Addrs {
		if a == dst {
			return a
		}
	}
	for _, a := range d.opt.Addrs {
		if a.Is4() == dst.Unmap().Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func (id *cmID) ResolveRoute(time.Duration) error {
	h := id.cm.host
	h.f.lock()
	defer h.f.unlock()
	if err := h.fault(CallResolveRoute); err != nil {
		return err
	}
	if id.state != idResolved {
		return fmt.Errorf("%s: %w", CallResolveRoute, unix.EINVAL)
	}
	id.set(idRouted)
	id.post(verbs.Event{Type: verbs.EventRouteResolved})
	return nil
}
