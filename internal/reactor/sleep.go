package reactor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A loop sleeps in two stages. First, for up to nap, in epoll_wait itself: the shortest way back to work. After that it parks in
// the runtime's poller, which watches the loop's epoll set. A thread in a system call keeps its processor, and the runtime's
// monitor runs some ten thousand times a second until it has taken that away; a parked goroutine gives it back at once, so a loop
// without work costs nothing until something happens.
const nap = time.Millisecond

// bed is the second stage.
type bed struct {
	file *os.File // owns the epoll descriptor
	raw  syscall.RawConn
	look func(fd uintptr) bool
	n    int
	err  error
}

// open hands the epoll descriptor of r to the runtime's poller.
func (b *bed) open(r *Reactor) error {
	if err := unix.SetNonblock(r.epfd, true); err != nil { // what makes os.NewFile use the poller
		return fmt.Errorf("fcntl: %w", err)
	}
	b.file = os.NewFile(uintptr(r.epfd), "epoll")
	raw, err := b.file.SyscallConn()
	if err != nil {
		return err
	}
	b.raw = raw
	b.look = func(uintptr) bool {
		b.n, b.err = unix.EpollWait(r.epfd, r.events[:], 0)
		return b.n != 0 || b.err != nil
	}
	return nil
}

// lie parks the goroutine until the epoll set has an event, or for timeout milliseconds, -1 for ever. It returns the number of
// events, as epoll_wait does.
func (b *bed) lie(timeout int) (int, error) {
	var until time.Time
	if timeout >= 0 {
		until = time.Now().Add(time.Duration(timeout) * time.Millisecond)
	}
	if err := b.file.SetReadDeadline(until); err != nil {
		return 0, err
	}
	b.n, b.err = 0, nil
	if err := b.raw.Read(b.look); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, err
	}
	return b.n, b.err
}

// sleep blocks until a descriptor is ready, somebody wakes the reactor, or a timer is due, and runs the callbacks.
func (r *Reactor) sleep() error {
	if r.starved {
		// A processor stays with a thread in a system call until the runtime's monitor takes it away, up to 10 ms
		// later. Let those that wait have it first.
		runtime.Gosched()
	}
	// Without spinning nothing measures the sleep, and the reading after the last sleep is good enough for a timeout.
	before := r.clock.now
	if r.spin.max > 0 {
		before = r.clock.read()
	}
	r.stats.Sleeps++
	n, err := r.wait(r.timers.timeout(before))
	// Awake before any callback: what they and others wake from now on costs no system call.
	r.state.Store(awake)
	r.spin.slept(r.clock.read() - before)
	if err != nil && err != unix.EINTR {
		return fmt.Errorf("epoll_wait: %w", err)
	}
	r.dispatch(n)
	r.runTimers()
	return nil
}

// wait is epoll_wait in two stages.
func (r *Reactor) wait(timeout int) (int, error) {
	const first = int(nap / time.Millisecond)
	if timeout >= 0 && timeout <= 2*first {
		return unix.EpollWait(r.epfd, r.events[:], timeout)
	}
	n, err := unix.EpollWait(r.epfd, r.events[:], first)
	if n != 0 || err != nil {
		return n, err
	}
	if timeout > 0 {
		timeout -= first
	}
	return r.bed.lie(timeout)
}
