// Package sys makes the system calls of the I/O path without allocation. The calls on sockets
// bypass the Go scheduler as well: their descriptors are in non-blocking mode, and they return at
// once. A raw call that blocks stops the garbage collector; see
// docs/adr/0002-raw-nonblocking-syscalls.md. The calls on files may block, and the scheduler knows.
//
// Errors are syscall.Errno values, 0 for success, EAGAIN for no progress. EINTR is retried.
package sys

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Iovec is one piece of a vectored transfer in the form of the kernel (readv(2)).
//
// Arrays of Iovec belong to the caller and are reused. The garbage collector sees the pointers in
// them, so the memory stays alive until they are overwritten or cleared.
type Iovec = unix.Iovec

// MaxIovecs is the maximum number of vectors in one call (UIO_MAXIOV of linux/uio.h).
const MaxIovecs = 1024

// SetIovec makes v refer to b.
func SetIovec(v *Iovec, b []byte) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
}

// Advance removes n transferred bytes from the front of iov in place: it drops whole vectors and
// shortens the first remaining one. n is at most the sum of the lengths.
func Advance(iov []Iovec, n int) []Iovec {
	for len(iov) > 0 {
		l := int(iov[0].Len)
		if n < l {
			if n > 0 {
				iov[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(iov[0].Base), n))
				iov[0].SetLen(l - n)
			}
			break
		}
		n -= l
		iov[0] = Iovec{}
		iov = iov[1:]
	}
	return iov
}

// Recv reads from a socket into b (recv(2)). MSG_DONTWAIT is added to flags. 0 with no error is the
// end of the stream, or b was empty.
func Recv(fd int, b []byte, flags int) (int, syscall.Errno) {
	return transfer(unix.SYS_RECVFROM, fd, b, flags)
}

// Send writes b to a socket (send(2)). MSG_DONTWAIT and MSG_NOSIGNAL are added to flags.
func Send(fd int, b []byte, flags int) (int, syscall.Errno) {
	return transfer(unix.SYS_SENDTO, fd, b, flags|unix.MSG_NOSIGNAL)
}

func transfer(trap uintptr, fd int, b []byte, flags int) (int, syscall.Errno) {
	for {
		n, _, e := syscall.RawSyscall6(trap, uintptr(fd),
			uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
			uintptr(flags|unix.MSG_DONTWAIT), 0, 0)
		if e != syscall.EINTR {
			return result(n, e)
		}
	}
}

// Sendmsg writes iov to a socket (sendmsg(2)). MSG_DONTWAIT and MSG_NOSIGNAL are added to flags.
func Sendmsg(fd int, iov []Iovec, flags int) (int, syscall.Errno) {
	if len(iov) == 1 {
		return Send(fd, Bytes(iov[0]), flags)
	}
	return message(unix.SYS_SENDMSG, fd, iov, flags|unix.MSG_NOSIGNAL)
}

// Recvmsg reads from a socket into iov (recvmsg(2)) without waiting. 0 is the end of the stream.
func Recvmsg(fd int, iov []Iovec, flags int) (int, syscall.Errno) {
	if len(iov) == 1 {
		return Recv(fd, Bytes(iov[0]), flags)
	}
	return message(unix.SYS_RECVMSG, fd, iov, flags)
}

// Bytes returns the memory of v. A single vector needs no message; fetching one is half of the cost
// of a call that transfers nothing.
func Bytes(v Iovec) []byte { return unsafe.Slice(v.Base, v.Len) }

func message(trap uintptr, fd int, iov []Iovec, flags int) (int, syscall.Errno) {
	m := unix.Msghdr{Iov: unsafe.SliceData(iov)}
	m.SetIovlen(len(iov))
	for {
		n, _, e := syscall.RawSyscall(trap, uintptr(fd), uintptr(unsafe.Pointer(&m)),
			uintptr(flags|unix.MSG_DONTWAIT))
		if e != syscall.EINTR {
			return result(n, e)
		}
	}
}

func result(n uintptr, e syscall.Errno) (int, syscall.Errno) {
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}
