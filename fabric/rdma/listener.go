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

// How often a listener that lost its device tries to come back: after rearmFirst, then twice as
// long each time up to rearmMax.
const (
	rearmFirst = 500 * time.Millisecond
	rearmMax   = 15 * time.Second
	backlog    = 512
)

// listener is an open NVMe port.
type listener struct {
	t      *Transport
	addr   fabric.Addr
	portID uint16
	accept func(fabric.Conn)
	stop   chan struct{}
	// goroutines that bring it back; connection requests that are neither adopted nor refused
	wg sync.WaitGroup

	// Under t.mu.
	id     verbs.ID // nil while the device is away
	closed bool
	arming bool // a goroutine brings the listener back
}

// Listen starts to accept connections at addr, which may be a wildcard; :: takes IPv4 as well.
// accept is called on a goroutine of its own for each connection request that may be served, and
// must adopt or close the connection; Close waits for it to return.
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
		err = l.bind()
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %v: %w%s", addr, err, mend(err))
	}
	t.open[l] = struct{}{}
	return l, nil
}

// mend is what to do about an error of Listen.
func mend(err error) string {
	switch {
	case errors.Is(err, verbs.ErrNotBuilt):
		return ""
	case errors.Is(err, verbs.ErrNoDevice), errors.Is(err, unix.ENODEV):
		return "; see that an RDMA device belongs to the interface with this address (rdma link) and is up"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return "; see that an interface has this address (ip address)"
	case errors.Is(err, unix.EADDRINUSE):
		return "; another program listens there: stop it or choose another port"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "; see to the permissions of /dev/infiniband/rdma_cm"
	case errors.Is(err, unix.ENOENT):
		return "; see that the kernel module rdma_ucm is loaded"
	}
	return ""
}

// bind makes the identifier and listens. t.mu is held, so that no request is looked at before the
// listener is known.
func (l *listener) bind() error {
	id, err := l.t.cm.Listen(l.addr.AddrPort, backlog, l.t.cfg.TOS[l.portID])
	if err != nil {
		return err
	}
	l.id = id
	l.t.byID[id] = l
	if l.addr.Port() == 0 {
		l.addr.AddrPort = netip.AddrPortFrom(l.addr.Addr(), id.Local().Port())
	}
	return nil
}

// Addr is the address listened on.
func (l *listener) Addr() fabric.Addr { return l.addr }

// Close stops accepting and returns when accept is not called any more; connections live on.
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
	delete(t.byID, id)
	delete(t.open, l)
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

// event brings the listener back when its device goes away or the address moves to another one. CM
// goroutine.
func (l *listener) event(ev *verbs.Event) {
	if ev.Type != verbs.EventDeviceRemoval && ev.Type != verbs.EventAddrChange {
		return
	}
	t := l.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.closed || l.arming || l.id == nil {
		return
	}
	id := l.id
	l.id, l.arming = nil, true
	delete(t.byID, id)
	t.cfg.Log.Warn("RDMA listener lost its device, waiting for it to return", "addr", l.addr,
		"event", ev.Type)
	l.wg.Go(func() {
		if err := id.Destroy(); err != nil {
			t.cfg.Log.Warn("RDMA listener cannot be freed", "addr", l.addr, "error", err)
		}
		l.rearm()
	})
}

// rearm listens again as soon as that works. An error is logged only when it changes.
func (l *listener) rearm() {
	last := ""
	for pause := rearmFirst; ; pause = min(2*pause, rearmMax) {
		timer := time.NewTimer(pause)
		select {
		case <-l.stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		err := l.tryRearm()
		if err == nil {
			return
		}
		if s := err.Error(); s != last {
			l.t.cfg.Log.Warn("RDMA listener still cannot start", "addr", l.addr, "error", err)
			last = s
		}
	}
}

func (l *listener) tryRearm() error {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	if l.closed || l.t.closed {
		return nil
	}
	if err := l.bind(); err != nil {
		return err
	}
	l.arming = false
	l.t.cfg.Log.Info("RDMA listener is back", "addr", l.addr)
	return nil
}
