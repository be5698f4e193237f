package pdu

import "encoding/binary"

// ICRespSize is the size of an ICResp in bytes.
const ICRespSize = 128

// ICResp is the Initialize Connection Response (TCP section 3.6.2.3). It never carries digests.
type ICResp [ICRespSize]byte

// MinMaxH2CData is the smallest legal MAXH2CDATA; the value must also be a multiple of 4 (TCP
// section 3.6.2.3).
const MinMaxH2CData = 4096

// Set makes an ICResp from CPDA, the digests and MaxH2CData of p.
func (r *ICResp) Set(p *Params) {
	*r = ICResp{}
	r.Header().Set(TypeICResp, 0, ICRespSize, 0, ICRespSize)
	r[OffHPDA] = p.CPDA
	r[OffDGST] = dgst(p.HeaderDigest, p.DataDigest)
	binary.LittleEndian.PutUint32(r[12:], p.MaxH2CData)
}

// Header is the common header.
func (r *ICResp) Header() *Header { return (*Header)(r[:HeaderSize]) }

// PFV is the PDU format version; only 0 exists.
func (r *ICResp) PFV() uint16 { return binary.LittleEndian.Uint16(r[OffPFV:]) }

// CPDA is the alignment of data the controller wants, in dwords, 0-based.
func (r *ICResp) CPDA() uint8 { return r[OffHPDA] }

func (r *ICResp) HeaderDigest() bool { return r[OffDGST]&dgstHeader != 0 }

func (r *ICResp) DataDigest() bool { return r[OffDGST]&dgstData != 0 }

// MaxH2CData is the largest number of data bytes in one H2CData PDU.
func (r *ICResp) MaxH2CData() uint32 { return binary.LittleEndian.Uint32(r[12:]) }

// Check validates the fields after the common header.
func (r *ICResp) Check() Fault {
	switch m := r.MaxH2CData(); {
	case r.PFV() != 0:
		return Fault{FESInvalidHeader, OffPFV}
	case r.CPDA() > 31:
		return Fault{FESInvalidHeader, OffHPDA}
	case m < MinMaxH2CData || m%4 != 0:
		return Fault{FESInvalidHeader, 12}
	}
	return Fault{}
}
