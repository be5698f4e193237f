package sys

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Datagrams is an array of messages for Send (sendmmsg(2)) and Recv (recvmmsg(2)). Names, control
// data and vectors belong to the caller; they stay alive while a message refers to them.
type Datagrams struct {
	headers []mmsghdr
	room    []capacity // of the messages, for Recv
	left    unix.Timespec
}

type mmsghdr struct {
	unix.Msghdr
	size uint32
}

type capacity struct{ name, control int }

// NewDatagrams makes an array of n messages.
func NewDatagrams(n int) *Datagrams {
	return &Datagrams{headers: make([]mmsghdr, n), room: make([]capacity, n)}
}

// Set makes message i of a socket address, control messages and data, each of which may be empty.
func (d *Datagrams) Set(i int, name, control []byte, iov []Iovec) {
	h := &d.headers[i]
	h.Name, h.Namelen = unsafe.SliceData(name), uint32(len(name))
	h.Control, h.Iov = unsafe.SliceData(control), unsafe.SliceData(iov)
	h.SetControllen(len(control))
	h.SetIovlen(len(iov))
	d.room[i] = capacity{len(name), len(control)}
}

// Send sends messages first to end-1 and returns the number. An error is about first.
func (d *Datagrams) Send(fd, first, end int) (int, syscall.Errno) {
	return d.call(unix.SYS_SENDMMSG, fd, first, end, unix.MSG_NOSIGNAL, nil)
}

// Recv fills the messages from first to end-1 and returns how many it has filled, and whether there
// may be more. It waits for none, and begins no other one after the time most.
func (d *Datagrams) Recv(fd, first, end int, most time.Duration) (
	n int, more bool, e syscall.Errno,
) {
	for i := first; i < end; i++ {
		h, r := &d.headers[i], d.room[i]
		h.Namelen = uint32(r.name)
		h.SetControllen(r.control)
	}
	d.left = unix.NsecToTimespec(int64(most))
	n, e = d.call(unix.SYS_RECVMMSG, fd, first, end, 0, &d.left)
	return n, n > 0 && (first+n == end || d.left == unix.Timespec{}), e
}

func (d *Datagrams) call(trap uintptr, fd, first, end, flags int, most *unix.Timespec) (
	int, syscall.Errno,
) {
	if first == end {
		return 0, 0
	}
	for {
		n, _, e := syscall.RawSyscall6(trap, uintptr(fd),
			uintptr(unsafe.Pointer(&d.headers[first])), uintptr(end-first),
			uintptr(flags|unix.MSG_DONTWAIT), uintptr(unsafe.Pointer(most)), 0)
		if e != syscall.EINTR {
			return result(n, e)
		}
	}
}

// Received returns the data and control bytes of message i. Longer datagrams are cut.
func (d *Datagrams) Received(i int) (data, control int) {
	h := &d.headers[i]
	return int(h.size), int(h.Controllen)
}
