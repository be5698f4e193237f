package pdu

import "encoding/binary"

// ICSize is the size of an ICReq and of an ICResp in bytes.
const ICSize = 128

// IC is the first PDU of a host, the Initialize Connection Request, or the response to it (TCP
// sections 3.6.2.2 and 3.6.2.3). It never carries digests.
type IC [ICSize]byte

// Byte offsets of an IC, for the FEI of a Fault.
const (
	OffPFV  = 8
	OffPDA  = 10 // HPDA in ICReq, CPDA in ICResp
	OffDGST = 11
)

// The bits of DGST.
const (
	dgstHeader = 1 << 0
	dgstData   = 1 << 1
)

// MinMaxH2CData is the smallest MAXH2CDATA, which is a multiple of 4 (TCP section 3.6.2.3).
const MinMaxH2CData = 4096

// ICReq makes an ICReq. maxR2T is the most R2Ts outstanding per command, counted from 1.
func ICReq(p *Params, maxR2T uint32) IC { return ic(TypeICReq, p, p.HPDA, maxR2T-1) }

// ICResp makes an ICResp from CPDA, the digests and MaxH2CData of p.
func ICResp(p *Params) IC { return ic(TypeICResp, p, p.CPDA, p.MaxH2CData) }

func ic(t Type, p *Params, pda uint8, limit uint32) (r IC) {
	r.Header().Set(t, 0, ICSize, 0, ICSize)
	r[OffPDA] = pda
	if p.HeaderDigest {
		r[OffDGST] = dgstHeader
	}
	if p.DataDigest {
		r[OffDGST] |= dgstData
	}
	binary.LittleEndian.PutUint32(r[12:], limit)
	return r
}

// Header is the common header.
func (r *IC) Header() *Header { return (*Header)(r[:HeaderSize]) }

// PFV is the PDU format version; only 0 exists.
func (r *IC) PFV() uint16 { return binary.LittleEndian.Uint16(r[OffPFV:]) }

// PDA is the alignment of data that the sender wants, in dwords, 0-based: HPDA in ICReq, CPDA in
// ICResp.
func (r *IC) PDA() uint8 { return r[OffPDA] }

// HeaderDigest reports whether the sender requests or grants header digests.
func (r *IC) HeaderDigest() bool { return r[OffDGST]&dgstHeader != 0 }

// DataDigest reports whether the sender requests or grants data digests.
func (r *IC) DataDigest() bool { return r[OffDGST]&dgstData != 0 }

// MaxH2CData is the largest number of data bytes in one H2CData PDU. Only an ICResp has it; an
// ICReq has the largest number of R2Ts outstanding per command there, 0-based.
func (r *IC) MaxH2CData() uint32 { return binary.LittleEndian.Uint32(r[12:]) }

// Check validates the fields after the common header.
func (r *IC) Check() Fault {
	switch m := r.MaxH2CData(); {
	case r.PFV() != 0:
		return Fault{FESInvalidHeader, OffPFV}
	case r.PDA() > 31: // 0 to 31
		return Fault{FESInvalidHeader, OffPDA}
	case r.Header().Type() == TypeICResp && (m < MinMaxH2CData || m%4 != 0):
		return Fault{FESInvalidHeader, 12}
	}
	return Fault{}
}
