package sys

import (
	"errors"
	"io"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Preadv2 is preadv2(2) at off, not negative. It may block, and the scheduler knows.
func Preadv2(fd int, iov []Iovec, off int64, flags int) (int, syscall.Errno) {
	return positioned(unix.SYS_PREADV2, fd, iov, off, flags)
}

// Pwritev2 is pwritev2(2) at off, not negative. It may block, and the scheduler knows.
func Pwritev2(fd int, iov []Iovec, off int64, flags int) (int, syscall.Errno) {
	return positioned(unix.SYS_PWRITEV2, fd, iov, off, flags)
}

func positioned(trap uintptr, fd int, iov []Iovec, off int64, flags int) (int, syscall.Errno) {
	// The offset is passed in two words. If one word holds all of it, only the lower one is used.
	high := uintptr(uint64(off) >> (unix.SizeofLong*8 - 1) >> 1)
	for {
		n, _, e := syscall.Syscall6(trap, uintptr(fd),
			uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)),
			uintptr(off), high, uintptr(flags))
		if e != syscall.EINTR {
			return result(n, e)
		}
	}
}

// BlockDiscard is BLKDISCARD (linux/fs.h) on a block device. It may block; the scheduler knows.
func BlockDiscard(fd int, off, n int64) syscall.Errno {
	r := [2]uint64{uint64(off), uint64(n)}
	_, _, e := syscall.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKDISCARD,
		uintptr(unsafe.Pointer(&r)))
	return e
}

// ReadFile reads up to most+1 bytes of a file. It is a regular file unless pipe is set: then the
// caller may wait for a writer.
func ReadFile(name string, most int, pipe bool) ([]byte, error) {
	info, err := os.Stat(name) // before open, which may block or harm a special file
	if err != nil {
		return nil, err
	}
	if !pipe && !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, int64(most)+1))
}
