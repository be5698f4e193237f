package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// The pauses between attempts to open an unavailable listener: the first and the longest.
const (
	retryFirst = time.Second
	retryMax   = 30 * time.Second
)

// listeners opens the configured listeners, keeps trying those that are not available yet, and
// closes them.
type listeners struct {
	s *Server

	mu   sync.Mutex
	list map[string]*listener // by name
	// tos is the type of service of each listener, by port ID: transports ask for it while they
	// open one.
	tos map[uint16]uint8
}

// listener is a configured listener. Its port ID is that of the discovery log.
type listener struct {
	name   string
	portID uint16
	config.Listener
	open   fabric.Listener    // nil while it waits
	err    error              // why it waits
	cancel context.CancelFunc // ends the attempts to open it; nil if there are none
	ended  chan struct{}      // closed when the attempts have ended
	// drained is where it listened before it was drained; invalid if it is not.
	drained fabric.Addr
}

func (l *listener) addr() fabric.Addr {
	if l.isDrained() {
		return l.drained
	}
	return fabric.Addr{
		Transport: l.Transport, AddrPort: netip.AddrPortFrom(l.Address, l.Port),
	}
}

// add opens a listener, or waits for its address or its device.
func (ls *listeners) add(l *listener) error {
	err := ls.tryOnce(l)
	switch {
	case err == nil:
		return nil
	case l.Required:
		return fmt.Errorf("%w (on_unavailable: fail)", err)
	}
	ls.await(l, err)
	return nil
}

// restore opens a listener that was open before. If that fails it waits in any case.
func (ls *listeners) restore(l *listener) error {
	if l.isDrained() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		ls.list[l.name] = l
		return nil
	}
	err := ls.tryOnce(l)
	if err != nil {
		ls.await(l, err)
	}
	return err
}

// await begins the attempts to open a listener that could not be opened because of err.
func (ls *listeners) await(l *listener, err error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.list[l.name], l.err = l, err
	if errors.Is(err, verbs.ErrNotBuilt) {
		ls.s.log.Error("listener cannot start and never will", "err", err)
		return
	}
	ls.s.log.Warn("listener cannot start yet, waiting for it", "err", err)
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel, l.ended = cancel, make(chan struct{})
	go ls.waitFor(ctx, l, err)
}

// tryOnce opens a listener and tells the discovery service.
func (ls *listeners) tryOnce(l *listener) error {
	ls.setTOS(l.portID, l.TOS)
	open, err := ls.s.listen(l)
	if err != nil {
		return err // it names the address and a hint
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.open = open
	ls.list[l.name] = l
	return nil
}

// waitFor opens l as soon as it can be. An error is logged again only when it changes.
func (ls *listeners) waitFor(ctx context.Context, l *listener, last error) {
	changed := func(err error) {
		ls.mu.Lock()
		l.err = err
		ls.mu.Unlock()
		ls.s.log.Warn("listener still cannot start, waiting for it", "err", err)
	}
	first := ls.s.opts.Retry
	if first == 0 {
		first = retryFirst
	}
	up := keepTrying(ctx, first, retryMax, last, func() error { return ls.tryOnce(l) }, changed)
	addr := l.addr()
	if up {
		ls.s.log.Info("listener is up", "listener", addr)
	}
	close(l.ended)
	if up { // afterwards: it may wait for a goroutine that changes or removes l
		ls.s.opts.ListenerUp(addr)
	}
}

// remove closes a listener and ends its connections.
func (ls *listeners) remove(l *listener) error {
	err := ls.close(l)
	ls.mu.Lock()
	delete(ls.list, l.name)
	delete(ls.tos, l.portID)
	ls.mu.Unlock()
	if l.open == nil {
		return err
	}
	return errors.Join(err, ls.s.target.RemovePort(l.portID))
}

// close ends the attempts to open a listener, or closes it; its connections stay.
func (ls *listeners) close(l *listener) error {
	ls.endAttempts(l)
	if l.open == nil {
		return nil
	}
	return l.open.Close()
}

// endAttempts ends the attempts to open a listener. The last of them may have opened it.
func (ls *listeners) endAttempts(l *listener) {
	if l.cancel == nil {
		return
	}
	l.cancel()
	<-l.ended
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.cancel = nil
}

// modify changes what a listener does besides listening at its address. After an error it is as
// before, or waits.
func (ls *listeners) modify(l *listener, c config.Listener) error {
	ls.endAttempts(l)
	before := l.Listener
	ls.mu.Lock()
	l.Listener = c
	ls.mu.Unlock()
	switch {
	case l.isDrained():
		return nil
	case l.open == nil:
		ls.await(l, l.err)
		return nil
	case l.TOS == before.TOS:
		return nil
	}
	at := l.open.Addr()
	err := l.open.Close()
	if err == nil {
		err = ls.reopen(l, at)
	}
	if err == nil {
		return nil
	}
	ls.mu.Lock()
	l.Listener = before
	ls.mu.Unlock()
	if again := ls.reopen(l, at); again != nil {
		ls.mu.Lock()
		l.open, l.err = nil, again
		ls.mu.Unlock()
		err = errors.Join(err, again, ls.s.target.RemovePort(l.portID))
		ls.await(l, again)
	}
	return err
}

// reopen opens a listener that was closed. Connections keep their type of service.
func (ls *listeners) reopen(l *listener, at fabric.Addr) error {
	ls.setTOS(l.portID, l.TOS)
	open, err := ls.s.transports[l.Transport].Listen(at, l.portID, ls.s.place)
	if err != nil {
		return err
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.open = open
	return nil
}

// get returns the listener with this name, which exists.
func (ls *listeners) get(name string) *listener {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.list[name]
}

// all lists the listeners by port ID.
func (ls *listeners) all() (list []*listener) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.list {
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b *listener) int { return cmp.Compare(a.portID, b.portID) })
	return list
}

// addrs returns the addresses of the open listeners with real port numbers, and those of the
// unavailable ones.
func (ls *listeners) addrs() (up, waiting []fabric.Addr) {
	for _, l := range ls.snapshot() {
		switch {
		case l.open != nil:
			up = append(up, l.open.Addr())
		case l.ended != nil:
			waiting = append(waiting, l.addr())
		}
	}
	return up, waiting
}

// snapshot returns copies of the listeners, by port ID.
func (ls *listeners) snapshot() (list []listener) {
	for _, l := range ls.all() {
		ls.mu.Lock()
		list = append(list, *l)
		ls.mu.Unlock()
	}
	return list
}

// tosOf returns the type of service of the connections of a listener.
func (ls *listeners) tosOf(portID uint16) uint8 {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.tos[portID]
}

func (ls *listeners) setTOS(portID uint16, tos uint8) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.tos[portID] = tos
}

// stop closes the listeners; connections stay.
func (ls *listeners) stop() error {
	var errs []error
	for _, l := range ls.all() {
		errs = append(errs, ls.close(l))
	}
	return errors.Join(errs...)
}

// listen opens a listener and tells the discovery service.
func (s *Server) listen(l *listener) (fabric.Listener, error) {
	t := s.transports[l.Transport]
	switch {
	case t == nil:
		return nil, fmt.Errorf("listen at %v: %w", l.addr(), verbs.ErrNotBuilt)
	case l.Transport == nvme.TransportRDMA && !s.external: // tests have no real device
		if err := checkMemlock(len(s.workers), s.atStart.Reactors.Memory); err != nil {
			return nil, fmt.Errorf("listen at %v: %w", l.addr(), err)
		}
	}
	open, err := t.Listen(l.addr(), l.portID, s.place)
	if err != nil {
		return nil, err
	}
	if err := s.target.AddPort(target.Port{ID: l.portID, Addr: open.Addr()}); err != nil {
		return nil, errors.Join(err, open.Close())
	}
	return open, nil
}
