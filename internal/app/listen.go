package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

// Waiting for an unavailable listener: the first retry after retryFirst, then twice as long each
// time up to retryMax.
const (
	retryFirst = time.Second
	retryMax   = 30 * time.Second
)

// listeners opens the configured ports, keeps trying those that are not available yet, and closes
// all of them.
type listeners struct {
	log *slog.Logger
	// open starts one port; up is called after a port that was waited for has come up.
	open  func(port) (fabric.Listener, error)
	up    func(fabric.Addr)
	retry time.Duration // the first pause

	mu      sync.Mutex
	running []fabric.Listener
	waiting []port

	stop context.CancelFunc
	wg   sync.WaitGroup
}

// start opens every port. An error means that a port which must be there is not.
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
			l.waiting = append(l.waiting, p)
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
	l.waiting = slices.DeleteFunc(l.waiting, func(w port) bool { return w.id == p.id })
	return nil
}

// waitFor opens p as soon as it can be. An error is logged again only when it changes.
func (l *listeners) waitFor(ctx context.Context, p port, last error) {
	changed := func(err error) {
		l.log.Warn("listener still cannot start, waiting for it", "err", err)
	}
	if keepTrying(ctx, l.retry, retryMax, last, func() error { return l.tryOnce(p) }, changed) {
		l.log.Info("listener is up", "listener", p.addr)
		l.up(p.addr)
	}
}

// addrs are the real addresses of the open ports, and the ports waited for.
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

// close ends the waiting and closes what is open; connections live on.
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

// checkMemlock fails if RDMA could not register the arenas of the reactors.
func checkMemlock(reactors int, arena int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil ||
		limit.Cur == unix.RLIM_INFINITY || mayLockMemory() {
		return nil
	}
	if need := uint64(reactors) * uint64(arena); limit.Cur < need {
		return fmt.Errorf(
			"the limit of locked memory is too low: %v, for %s of %v (set LimitMEMLOCK=infinity in the systemd unit, or "+
				"\"ulimit -l unlimited\" as root before the start)", config.Size(limit.Cur),
			count(reactors, "arena"), config.Size(arena))
	}
	return nil
}

// mayLockMemory says whether the process has CAP_IPC_LOCK, to which the limit does not apply.
func mayLockMemory() bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&head, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
}
