package sys

import (
	"errors"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// EpollEvent makes an epoll set and an eventfd in it. The eventfd is edge-triggered: each write is
// one event, and the counter need not be read.
func EpollEvent() (epfd, evfd int, err error) {
	if epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return -1, -1, os.NewSyscallError("epoll_create1", err)
	}
	if evfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return -1, -1, errors.Join(os.NewSyscallError("eventfd", err), unix.Close(epfd))
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(evfd)}
	if err = unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, evfd, &ev); err != nil {
		return -1, -1, errors.Join(os.NewSyscallError("epoll_ctl", err), unix.Close(evfd),
			unix.Close(epfd))
	}
	return epfd, evfd, nil
}

// EpollWait waits for events of an epoll set (epoll_pwait(2)) for at most ms milliseconds. The Go
// scheduler does not know: the processor of the runtime (P) waits too, so ms is small. It is the
// only raw call that blocks. A signal ends it with EINTR; that is how the runtime asks the
// goroutine to stop for the garbage collector.
func EpollWait(epfd int, events []unix.EpollEvent, ms int) (int, syscall.Errno) {
	n, _, e := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epfd),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))),
		uintptr(len(events)), uintptr(ms), 0, 0)
	return result(n, e)
}
