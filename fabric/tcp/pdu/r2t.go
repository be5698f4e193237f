package pdu

import "encoding/binary"

// R2TSize is the size of an R2T in bytes, without the header digest.
const R2TSize = 24

// R2T is Ready To Transfer: the controller requests a part of a command's data (TCP section
// 3.6.2.10).
type R2T [R2TSize]byte

// Set writes the whole PDU without the digest.
func (r *R2T) Set(p *Params, cid, ttag uint16, offset, length uint32) {
	r.Header().Set(TypeR2T, p.headerFlags(), R2TSize, 0, uint32(R2TSize+p.HeaderDigestSize()))
	binary.LittleEndian.PutUint16(r[OffCCCID:], cid)
	binary.LittleEndian.PutUint16(r[OffTTAG:], ttag)
	binary.LittleEndian.PutUint32(r[12:], offset)
	binary.LittleEndian.PutUint32(r[16:], length)
	binary.LittleEndian.PutUint32(r[20:], 0)
}

// Header is the common header.
func (r *R2T) Header() *Header { return (*Header)(r[:HeaderSize]) }

// CCCID is the identifier of the command.
func (r *R2T) CCCID() uint16 { return binary.LittleEndian.Uint16(r[OffCCCID:]) }

// TTAG is the controller's transfer tag; H2CData repeats it.
func (r *R2T) TTAG() uint16 { return binary.LittleEndian.Uint16(r[OffTTAG:]) }

// R2TO is the offset of the requested data within the command's data.
func (r *R2T) R2TO() uint32 { return binary.LittleEndian.Uint32(r[12:]) }

// R2TL is the number of requested bytes.
func (r *R2T) R2TL() uint32 { return binary.LittleEndian.Uint32(r[16:]) }
