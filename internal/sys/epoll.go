package sys

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// EpollWait waits for events of an epoll set (epoll_pwait(2)) for at most ms milliseconds without
// telling the scheduler: the processor of the Go runtime waits too, so ms is small. It is the only
// call here that blocks; a signal ends it with EINTR, and that is how the runtime asks the
// goroutine to stop for the garbage collector.
func EpollWait(epfd int, events []unix.EpollEvent, ms int) (int, syscall.Errno) {
	n, _, e := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epfd),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))),
		uintptr(len(events)), uintptr(ms), 0, 0)
	return result(n, e)
}
