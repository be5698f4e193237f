package pdu

import "encoding/binary"

// ICReqSize is the size of an ICReq in bytes.
const ICReqSize = 128

// ICReq is the Initialize Connection Request, the first PDU of a host (TCP section 3.6.2.2). It
// never carries digests.
type ICReq [ICReqSize]byte

// Byte offsets of ICReq and ICResp, for the FEI of a Fault.
const (
	OffPFV  = 8
	OffHPDA = 10 // CPDA in ICResp
	OffDGST = 11
)

// The bits of DGST in ICReq and ICResp.
const (
	dgstHeader = 1 << 0
	dgstData   = 1 << 1
)

// Set makes an ICReq. maxR2T is the largest number of R2Ts outstanding per command, counted from 1.
func (r *ICReq) Set(p *Params, maxR2T uint32) {
	*r = ICReq{}
	r.Header().Set(TypeICReq, 0, ICReqSize, 0, ICReqSize)
	r[OffHPDA] = p.HPDA
	r[OffDGST] = dgst(p.HeaderDigest, p.DataDigest)
	binary.LittleEndian.PutUint32(r[12:], maxR2T-1)
}

// Header is the common header.
func (r *ICReq) Header() *Header { return (*Header)(r[:HeaderSize]) }

// PFV is the PDU format version; only 0 exists.
func (r *ICReq) PFV() uint16 { return binary.LittleEndian.Uint16(r[OffPFV:]) }

// HPDA is the alignment of data the host wants, in dwords, 0-based.
func (r *ICReq) HPDA() uint8 { return r[OffHPDA] }

// HeaderDigest reports whether the host requests header digests.
func (r *ICReq) HeaderDigest() bool { return r[OffDGST]&dgstHeader != 0 }

// DataDigest reports whether the host requests data digests.
func (r *ICReq) DataDigest() bool { return r[OffDGST]&dgstData != 0 }

// MaxR2T is the largest number of R2Ts outstanding per command, counted from 1 (the field is
// 0-based).
func (r *ICReq) MaxR2T() uint64 { return uint64(binary.LittleEndian.Uint32(r[12:])) + 1 }

// Check validates the fields after the common header.
func (r *ICReq) Check() Fault {
	if r.PFV() != 0 {
		return Fault{FESInvalidHeader, OffPFV}
	}
	if r.HPDA() > 31 { // TCP section 3.6.2.2: 0 to 31
		return Fault{FESInvalidHeader, OffHPDA}
	}
	return Fault{}
}

func dgst(header, data bool) (b byte) {
	if header {
		b = dgstHeader
	}
	if data {
		b |= dgstData
	}
	return b
}
