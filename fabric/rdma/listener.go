package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// A listener that lost its device retries after retryFirst, then after twice as long each time, up
// to retryMax.
const (
	retryFirst = 500 * time.Millisecond
	retryMax   = 15 * time.Second
	backlog    = 512
)

// listener is an open NVMe port.
type listener struct {
	t      *Transport
	addr   fabric.Addr
	portID uint16
	accept func(fabric.Conn)
	stop   chan struct{}
	// wg counts the goroutine that reopens the listener, and accept callbacks.
	wg sync.WaitGroup

	// Under t.mu.
	id     verbs.ID // nil while the device is away
	closed bool
}

// Listen starts to accept connections at addr, which may be a wildcard; :: includes IPv4. accept is
// called on a goroutine of its own for each connection request that may be served. It must adopt or
// close the connection; Close waits for it to return.
func (t *Transport) Listen(addr fabric.Addr, portID uint16,
	accept func(fabric.Conn),
) (fabric.Listener, error) {
	if addr.Transport != nvme.TransportRDMA || !addr.Addr().IsValid() {
		return nil, fmt.Errorf("rdma: listen at %v: not an RDMA address", addr)
	}
	l := &listener{t: t, addr: addr, portID: portID, accept: accept, stop: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.startCM()
	if err == nil {
		err = l.open()
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %v: %w%s", addr, err, listenHint(err))
	}
	t.listeners[l] = struct{}{}
	return l, nil
}

// listenHint says how to fix an error of Listen that is not about the communication manager: those
// have hints of the binding.
func listenHint(err error) string {
	switch {
	case errors.Is(err, verbs.ErrNoDevice), errors.Is(err, unix.ENODEV):
		return "; see that an RDMA device belongs to the interface with this address (rdma link) " +
			"and is up"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return "; see that an interface has this address (ip address)"
	case errors.Is(err, unix.EADDRINUSE):
		return "; another program listens there (rdma resource show cm_id): stop it or choose " +
			"another port"
	}
	return ""
}

// open makes the identifier and listens. t.mu is held, so that no connection request is handled
// before the listener is known.
func (l *listener) open() error {
	id, err := l.t.cm.Listen(l.addr.AddrPort, backlog, l.t.cfg.TOS(l.portID))
	if err != nil {
		return err
	}
	l.id = id
	l.t.listening[id] = l
	if l.addr.Port() == 0 {
		l.addr.AddrPort = netip.AddrPortFrom(l.addr.Addr(), id.Local().Port())
	}
	return nil
}

// Addr is the address listened on.
func (l *listener) Addr() fabric.Addr { return l.addr }

// Close stops accepting and waits for accept callbacks; connections live on.
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
	close(l.stop)
	l.wg.Wait()
	if id == nil {
		return nil
	}
	if err := id.Destroy(); err != nil {
		return fmt.Errorf("close listener %v: %w", l.addr, err)
	}
	return nil
}

// event reopens the listener after its device was removed or its address moved to another one. CM
// goroutine.
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
	t.cfg.Log.Warn("RDMA listener lost its device, waiting for it to return", "listener", l.addr,
		"event", ev.Type)
	l.wg.Go(func() {
		if err := id.Destroy(); err != nil {
			t.cfg.Log.Warn("RDMA listener cannot be freed", "listener", l.addr, "err", err)
		}
		l.reopen()
	})
}

// reopen retries until the listener is open again or closed. An error is logged only when it
// changes.
func (l *listener) reopen() {
	last := ""
	for pause := retryFirst; ; pause = min(2*pause, retryMax) {
		timer := time.NewTimer(pause)
		select {
		case <-l.stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		err := l.tryReopen()
		if err == nil {
			return
		}
		if s := err.Error(); s != last {
			l.t.cfg.Log.Warn("RDMA listener still cannot start", "listener", l.addr, "err", err)
			last = s
		}
	}
}

func (l *listener) tryReopen() error {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	if l.closed || l.t.closed {
		return nil
	}
	if err := l.open(); err != nil {
		return err
	}
	l.t.cfg.Log.Info("RDMA listener is back", "listener", l.addr)
	return nil
}
