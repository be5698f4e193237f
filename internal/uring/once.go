package uring

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// onceTimeout bounds the wait of Once.
const onceTimeout = 30 * time.Second

// Once makes a ring, calls start to queue a command on fd, and returns its result. It blocks. After
// os.ErrDeadlineExceeded the memory of the command still belongs to the kernel.
func Once(fd int, start func(r *Ring, f File, c Completer) bool) (res int32, err error) {
	runtime.LockOSThread() // the ring belongs to one thread
	defer runtime.UnlockOSThread()
	eventFD, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("eventfd: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(eventFD)) }()
	r, err := create(Config{EventFD: eventFD, Commands: true}, 1, 1)
	if err != nil {
		return 0, err
	}
	var c once
	if !start(r, File{fd: int32(fd)}, &c) {
		return 0, errors.Join(errors.New("io_uring takes no operation"), r.Close())
	}
	for end := time.Now().Add(onceTimeout); r.Outstanding() > 0; {
		if r.Poll() > 0 || !r.Arm() {
			continue
		}
		left := time.Until(end)
		if left <= 0 {
			// the ring cannot be closed either
			return 0, fmt.Errorf("a command by io_uring does not end: %w", os.ErrDeadlineExceeded)
		}
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(eventFD), Events: unix.POLLIN}},
			int(left.Milliseconds())+1); err != nil && err != unix.EINTR {
			return 0, fmt.Errorf("poll: %w", err)
		}
	}
	return c.res, r.Close()
}

// once keeps a result.
type once struct{ res int32 }

func (c *once) Complete(res int32) { c.res = res }
