package pdu

import (
	"cmp"
	"encoding/binary"
	"fmt"
)

// TermReqSize is the size of the header of a H2CTermReq or C2HTermReq in bytes.
const TermReqSize = 24

// MaxTermData is the largest part of the offending PDU's header that a TermReq carries; MaxTermReq
// is the largest TermReq (TCP section 3.6.2.4; NVME_TCP_MAX_C2HTERM_PLEN in Linux).
const (
	MaxTermData = 128
	MaxTermReq  = TermReqSize + MaxTermData
)

// TermReq is the header of H2CTermReq and C2HTermReq (TCP sections 3.6.2.4 and 3.6.2.5), which
// report a fatal error. The connection ends afterwards. The header of the offending PDU follows. It
// never carries digests.
type TermReq [TermReqSize]byte

// FES is the Fatal Error Status of a TermReq.
type FES uint16

// The fatal error statuses.
const (
	FESInvalidHeader FES = 1 // FEI: byte offset of the bad field
	FESSequence      FES = 2
	FESHeaderDigest  FES = 3 // FEI: the digest received
	FESOutOfRange    FES = 4
	FESLimit         FES = 5 // data transfer limit or R2T limit exceeded
	FESUnsupported   FES = 6 // FEI: byte offset of the bad parameter
)

var fesNames = map[FES]string{
	FESInvalidHeader: "Invalid PDU Header Field", FESSequence: "PDU Sequence Error",
	FESHeaderDigest: "Header Digest Error", FESOutOfRange: "Data Transfer Out Of Range",
	FESLimit: "Data Transfer Limit Exceeded", FESUnsupported: "Unsupported Parameter",
}

// String returns the name in the specification.
func (f FES) String() string {
	return cmp.Or(fesNames[f], fmt.Sprintf("fatal error status %d", uint16(f)))
}

// Fault is a fatal error found in a PDU, for a TermReq. The zero value means no error.
type Fault struct {
	FES FES
	FEI uint32
}

// OK reports whether there is no fault.
func (f Fault) OK() bool { return f.FES == 0 }

// Error describes the fault.
func (f Fault) Error() string {
	switch f.FES {
	case FESInvalidHeader, FESUnsupported:
		return fmt.Sprintf("%v at byte %d", f.FES, f.FEI)
	case FESHeaderDigest:
		return fmt.Sprintf("%v, received %08x", f.FES, f.FEI)
	}
	return f.FES.String()
}

// AppendTermReq appends a whole TermReq of type t (TypeH2CTermReq or TypeC2HTermReq) for a fault in
// the PDU that starts with offending; at most MaxTermData of it is copied.
func AppendTermReq(b []byte, t Type, f Fault, offending []byte) []byte {
	if len(offending) > MaxTermData {
		offending = offending[:MaxTermData]
	}
	var r TermReq
	// PDO is reserved: figures 22 and 23
	r.Header().Set(t, 0, TermReqSize, 0, uint32(TermReqSize+len(offending)))
	binary.LittleEndian.PutUint16(r[8:], uint16(f.FES))
	binary.LittleEndian.PutUint32(r[10:], f.FEI)
	return append(append(b, r[:]...), offending...)
}

// Header is the common header.
func (r *TermReq) Header() *Header { return (*Header)(r[:HeaderSize]) }

// Fault is the fatal error status and its information.
func (r *TermReq) Fault() Fault {
	return Fault{FES(binary.LittleEndian.Uint16(r[8:])), binary.LittleEndian.Uint32(r[10:])}
}
