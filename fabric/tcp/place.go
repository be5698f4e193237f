package tcp

import (
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// target is the memory that data from the host is received into: the request's segments, but for
// in-capsule data, which arrives before Prepare could attach any, memory of our own.
func (r *request) target() []mem.Segment {
	if r.InCapsule {
		return r.own
	}
	return r.Segs
}

// appendTargets appends the memory of the next n bytes of r's data, as far as vectors suffice, and
// returns its length.
func appendTargets(iov []sys.Iovec, r *request, n int) ([]sys.Iovec, int) {
	off, left := int(r.recvd), n
	for _, s := range r.target() {
		if off >= len(s.B) {
			off -= len(s.B)
			continue
		}
		b := s.B[off:]
		off = 0
		b = b[:min(len(b), left)]
		if len(b) == 0 || len(iov) == iovMax-1 {
			break
		}
		iov = append(iov, sys.Iovec{})
		sys.SetIovec(&iov[len(iov)-1], b)
		left -= len(b)
	}
	return iov, n - left
}

// copyIn puts data where r's data goes on.
func copyIn(r *request, data []byte) {
	dst := r.target()
	off := int(r.recvd)
	for i := range dst {
		s := dst[i].B
		if off >= len(s) {
			off -= len(s)
			continue
		}
		m := mem.Copy(s[off:], data)
		data = data[m:]
		off = 0
		if len(data) == 0 {
			break
		}
	}
}

// copyOut fills b with what lies at offset off of r's data.
func copyOut(b []byte, r *request, off int) {
	for _, s := range r.target() {
		if off >= len(s.B) {
			off -= len(s.B)
			continue
		}
		b = b[mem.Copy(b, s.B[off:]):]
		off = 0
	}
}
