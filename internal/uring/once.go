package uring

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// onceLimit is how long Once waits.
const onceLimit = 30 * time.Second

// Once makes a ring for commands, has start queue one on fd, and returns its result: what a
// Completer is told. It blocks. After os.ErrDeadlineExceeded the memory that the command refers to
// is still the kernel's.
func Once(fd int, start func(r *Ring, f File, c Completer) bool) (res int32, err error) {
	runtime.LockOSThread() // which the ring belongs to
	defer runtime.UnlockOSThread()
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("eventfd: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(bell)) }()
	r, err := create(Config{EventFD: bell, Commands: true}, 1, 1)
	if err != nil {
		return 0, err
	}
	var c once
	if !start(r, File{fd: int32(fd)}, &c) {
		return 0, errors.Join(errors.New("io_uring takes no operation"), r.Close())
	}
	for end := time.Now().Add(onceLimit); r.Outstanding() > 0; {
		if r.Poll() > 0 || !r.Arm() {
			continue
		}
		left := time.Until(end)
		if left <= 0 {
			// nor may the ring
			return 0, fmt.Errorf("a command by io_uring does not end: %w", os.ErrDeadlineExceeded)
		}
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(bell), Events: unix.POLLIN}},
			int(left.Milliseconds())+1); err != nil && err != unix.EINTR {
			return 0, fmt.Errorf("poll: %w", err)
		}
	}
	return c.res, r.Close()
}

// once keeps a result.
type once struct{ res int32 }

// Complete implements Completer.
func (c *once) Complete(res int32) { c.res = res }
