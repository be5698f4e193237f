package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Backlog is the number of connection requests that wait for a listener.
const Backlog = 512

// listener is an open NVMe port.
type listener struct {
	t      *Transport
	stack  fabric.Stack // the one tried last, not fabric.AnyStack
	addr   fabric.Addr
	portID uint16
	accept func(fabric.Conn)
	// wg counts the goroutine that frees the identifier, and accept callbacks.
	wg sync.WaitGroup

	// Under t.mu.
	id     verbs.ID // nil when the device is gone
	closed bool
}

// Listen starts to accept connections at addr, which may be a wildcard; :: includes IPv4. accept is
// called on its own goroutine for each connection request that may be served. It must adopt or
// close the connection; Close waits for it to return.
func (t *Transport) Listen(addr fabric.Addr, portID uint16,
	accept func(fabric.Conn),
) (fabric.Listener, error) {
	if addr.Transport != nvme.TransportRDMA || !addr.Addr().IsValid() {
		return nil, fmt.Errorf("rdma: listen at %v: not an RDMA address", addr)
	}
	l := &listener{t: t, addr: addr, portID: portID, accept: accept}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("listen at %v: %w%s", addr, err, listenHint(err, l.stack))
	}
	t.listeners[l] = struct{}{}
	return l, nil
}

// listenHint returns the fix for an error of Listen on a stack, except errors of the communication
// manager: they have hints of the binding.
func listenHint(err error, s fabric.Stack) string {
	switch {
	case s == fabric.SoftStack && errors.Is(err, unix.EADDRINUSE):
		return "; end that program, remove the devices of rdma_rxe, or run the target in another " +
			"network namespace"
	case s == fabric.SoftIWARPStack && errors.Is(err, unix.EADDRINUSE):
		return "; another program has this TCP port (ss -ltnp): stop it or choose another port"
	case errors.Is(err, verbs.ErrNoDevice), errors.Is(err, unix.ENODEV):
		return "; check that an RDMA device belongs to the interface with this address (rdma " +
			"link) and is up, or serve without one (stack: soft)"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return "; check that an interface has this address (ip address)"
	case errors.Is(err, unix.EADDRINUSE):
		return "; another program listens there (rdma resource show cm_id): stop it or choose " +
			"another port"
	}
	return ""
}

// open listens on the stack that the configuration asks for. t.mu is held, so that no connection
// request is handled before the listener is registered.
func (l *listener) open() error {
	choice := l.t.cfg.Stack(l.portID)
	if choice.Soft() {
		return l.openOn(choice)
	}
	none := l.openOn(fabric.DeviceStack)
	if choice == fabric.DeviceStack || l.t.cfg.Soft == nil || !l.lacksDevice(none) {
		return none
	}
	err := l.openOn(fabric.SoftStack)
	if err == nil {
		l.t.cfg.Log.Info("RDMA listener uses no device", "listener", l.addr, "reason", none)
	}
	return err
}

// lacksDevice reports whether an error of the devices is a reason to do without one. It asks for an
// awaited device last: that reads the GID tables of all devices.
func (l *listener) lacksDevice(err error) bool {
	if !errors.Is(err, verbs.ErrNoDevice) {
		return errors.Is(err, verbs.ErrNotBuilt)
	}
	return l.t.cms[fabric.DeviceStack] == nil || !l.t.cfg.Awaited(l.portID)
}

// openOn makes the identifier of a stack and listens.
func (l *listener) openOn(s fabric.Stack) error {
	l.stack = s
	cm, err := l.t.manager(s)
	if err != nil {
		return err
	}
	if s == fabric.DeviceStack && l.addr.Addr().IsUnspecified() && l.t.cfg.Soft != nil {
		// The kernel listens at a wildcard address even if there is no device.
		if list, err := l.t.cfg.Provider.Devices(); err != nil || len(list) == 0 {
			return cmp.Or(err, verbs.ErrNoDevice)
		}
	}
	id, err := cm.Listen(l.addr.AddrPort, Backlog, l.t.cfg.TOS(l.portID))
	switch {
	case s.Soft() && errors.Is(err, verbs.ErrNoDevice):
		return unix.EADDRNOTAVAIL // its device has all addresses of the machine
	case err != nil:
		return err
	}
	if s == fabric.DeviceStack && l.t.locks() {
		if err := l.t.cfg.Memlock(); err != nil {
			return errors.Join(err, id.Destroy())
		}
	}
	l.id = id
	l.t.listening[id] = l
	if l.addr.Port() == 0 {
		l.addr.AddrPort = netip.AddrPortFrom(l.addr.Addr(), id.Local().Port())
	}
	return nil
}

// locks reports whether any device locks the memory that is registered with it.
func (t *Transport) locks() bool {
	list, err := t.cfg.Provider.Devices()
	locks := func(d verbs.DeviceAttr) bool { return !d.Unlocked }
	return err != nil || slices.ContainsFunc(list, locks)
}

// Addr is the address listened on.
func (l *listener) Addr() fabric.Addr { return l.addr }

// Stack returns the stack that serves, not fabric.AnyStack.
func (l *listener) Stack() fabric.Stack { return l.stack }

// Close stops accepting and waits for accept callbacks. Connections stay open.
func (l *listener) Close() error {
	t := l.t
	t.mu.Lock()
	if l.closed {
		t.mu.Unlock()
		return nil
	}
	l.closed = true
	id := l.id
	l.id = nil
	delete(t.listening, id)
	delete(t.listeners, l)
	t.mu.Unlock()
	l.wg.Wait()
	if id == nil {
		return nil
	}
	if err := id.Destroy(); err != nil {
		return fmt.Errorf("close listener %v: %w", l.addr, err)
	}
	return nil
}

// event ends the listener if its device or address has gone. CM goroutine.
func (l *listener) event(ev *verbs.Event) {
	if ev.Type != verbs.EventDeviceRemoval && ev.Type != verbs.EventAddrChange {
		return
	}
	t := l.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.closed || l.id == nil {
		return
	}
	id := l.id
	l.id = nil
	delete(t.listening, id)
	t.cfg.Log.Warn("RDMA listener lost its device", "listener", l.addr, "event", ev.Type)
	l.wg.Go(func() {
		if err := id.Destroy(); err != nil {
			t.cfg.Log.Warn("RDMA listener cannot be freed", "listener", l.addr, "err", err)
		}
		t.cfg.Lost(l.portID)
	})
}
