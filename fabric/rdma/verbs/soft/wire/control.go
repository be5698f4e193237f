package wire

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// nameSize is that of sockaddr_in6. controlSize is enough for the control messages of a datagram.
const nameSize, controlSize = unix.SizeofSockaddrInet6, 160

// controlMessage takes the first control message (struct cmsghdr, cmsg(3)) from b.
func controlMessage(b []byte) (level, kind int, data, rest []byte, ok bool) {
	if len(b) < unix.SizeofCmsghdr {
		return 0, 0, nil, nil, false
	}
	var n uint64 // cmsg_len is as large as a pointer
	if unix.SizeofCmsghdr == 16 {
		n = binary.NativeEndian.Uint64(b)
	} else {
		n = uint64(binary.NativeEndian.Uint32(b))
	}
	if n < unix.SizeofCmsghdr || n > uint64(len(b)) {
		return 0, 0, nil, nil, false
	}
	level = int(binary.NativeEndian.Uint32(b[unix.SizeofCmsghdr-8:]))
	kind = int(binary.NativeEndian.Uint32(b[unix.SizeofCmsghdr-4:]))
	data = b[unix.SizeofCmsghdr:n]
	space := unix.CmsgSpace(len(data))
	return level, kind, data, b[min(space, len(b)):], true
}

// putControl writes a control message to b and returns its data and the bytes after it.
func putControl(b []byte, level, kind, n int) (data, rest []byte) {
	if unix.SizeofCmsghdr == 16 {
		binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(n)))
	} else {
		binary.NativeEndian.PutUint32(b, uint32(unix.CmsgLen(n)))
	}
	binary.NativeEndian.PutUint32(b[unix.SizeofCmsghdr-8:], uint32(level))
	binary.NativeEndian.PutUint32(b[unix.SizeofCmsghdr-4:], uint32(kind))
	return b[unix.SizeofCmsghdr:][:n], b[unix.CmsgSpace(n):]
}
