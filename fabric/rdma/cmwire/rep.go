package cmwire

import "encoding/binary"

// RepSize is the size of the private data of an accept in bytes.
const RepSize = 32

// Rep is the private data of an accept, controller to host (RDMA section 3.1.4, figure 6).
type Rep [RepSize]byte

// ParseRep copies a record out of the private data of an accept. ok is false if that is too short.
func ParseRep(b []byte) (r Rep, ok bool) {
	ok = copy(r[:], b) == RepSize
	return r, ok
}

// Set makes an accept. crqsize is the number of receives the controller posts.
func (r *Rep) Set(crqsize uint16) {
	*r = Rep{}
	binary.LittleEndian.PutUint16(r[0:], RecFmt)
	binary.LittleEndian.PutUint16(r[2:], crqsize)
}

// RecFmt is the record format.
func (r *Rep) RecFmt() uint16 { return binary.LittleEndian.Uint16(r[0:]) }

// CRQSize is the number of capsules the controller can receive.
func (r *Rep) CRQSize() uint16 { return binary.LittleEndian.Uint16(r[2:]) }
