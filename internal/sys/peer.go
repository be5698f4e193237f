package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// PeerGroups returns the supplementary groups that the process at the other end of a unix socket
// had when it connected (SO_PEERGROUPS, Linux 4.13).
func PeerGroups(fd int) ([]uint32, error) {
	list := make([]uint32, 32)
	for {
		size := uint32(4 * len(list))
		_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET,
			unix.SO_PEERGROUPS, uintptr(unsafe.Pointer(unsafe.SliceData(list))),
			uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case e == 0:
			return list[:size/4], nil
		case e != unix.ERANGE || int(size/4) <= len(list):
			return nil, e
		}
		list = make([]uint32, size/4)
	}
}
