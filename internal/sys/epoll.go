package sys

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
