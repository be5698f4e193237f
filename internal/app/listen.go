package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// The pauses between attempts to open an unavailable listener: the first and the longest.
const (
	retryFirst = time.Second
	retryMax   = 30 * time.Second
)

// listeners opens the configured ports, keeps trying those that are not available yet, and closes
// all of them.
type listeners struct {
	log *slog.Logger
	// open opens one port; up is called when a port that was unavailable has been opened.
	open  func(port) (fabric.Listener, error)
	up    func(fabric.Addr)
	retry time.Duration // the first pause

	mu      sync.Mutex
	running []fabric.Listener
	waiting []unavailable

	stop context.CancelFunc
	wg   sync.WaitGroup
}

// unavailable is a port that could not be opened yet, and the last reason.
type unavailable struct {
	port
	err error
}

// start opens every port. It fails if a required port is unavailable.
func (l *listeners) start(ports []port) error {
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	if l.retry == 0 {
		l.retry = retryFirst
	}
	var errs []error
	for _, p := range ports {
		err := l.tryOnce(p)
		switch {
		case err == nil:
		case p.required:
			errs = append(errs, fmt.Errorf("%w (on_unavailable: fail)", err))
		case errors.Is(err, verbs.ErrNotBuilt):
			l.log.Error("listener cannot start and never will", "err", err)
		default:
			l.log.Warn("listener cannot start yet, waiting for it", "err", err)
			l.mu.Lock()
			l.waiting = append(l.waiting, unavailable{p, err})
			l.mu.Unlock()
			l.wg.Go(func() { l.waitFor(ctx, p, err) })
		}
	}
	return errors.Join(errs...)
}

func (l *listeners) tryOnce(p port) error {
	listener, err := l.open(p)
	if err != nil {
		return err // it names the address and a hint
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = append(l.running, listener)
	l.waiting = slices.DeleteFunc(l.waiting, func(w unavailable) bool { return w.id == p.id })
	return nil
}

// waitFor opens p as soon as it can be. An error is logged again only when it changes.
func (l *listeners) waitFor(ctx context.Context, p port, last error) {
	changed := func(err error) {
		l.mu.Lock()
		for i := range l.waiting {
			if l.waiting[i].id == p.id {
				l.waiting[i].err = err
			}
		}
		l.mu.Unlock()
		l.log.Warn("listener still cannot start, waiting for it", "err", err)
	}
	if keepTrying(ctx, l.retry, retryMax, last, func() error { return l.tryOnce(p) }, changed) {
		l.log.Info("listener is up", "listener", p.addr)
		l.up(p.addr)
	}
}

// addrs returns the addresses of the open ports with real port numbers, and those of the
// unavailable ones.
func (l *listeners) addrs() (up, waiting []fabric.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.running {
		up = append(up, r.Addr())
	}
	for _, p := range l.waiting {
		waiting = append(waiting, p.addr)
	}
	return up, waiting
}

// unavailable lists the ports that could not be opened yet.
func (l *listeners) unavailable() []unavailable {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.waiting)
}

// close stops waiting and closes the listeners; established connections stay.
func (l *listeners) close() error {
	if l.stop == nil {
		return nil
	}
	l.stop()
	l.wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, r := range l.running {
		errs = append(errs, r.Close())
	}
	l.running = nil
	return errors.Join(errs...)
}
