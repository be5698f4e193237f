package pdu

import "encoding/binary"

// DataSize is the size of a Data in bytes, without the header digest.
const DataSize = 24

// Data is the header of H2CData and C2HData (TCP sections 3.6.2.8 and 3.6.2.9), where TTAG is
// reserved in C2HData. It is also a whole R2T, Ready To Transfer, which requests a part of a
// command's data (TCP section 3.6.2.10).
type Data [DataSize]byte

// Byte offsets of Data, for the FEI of a Fault.
const (
	OffCCCID = 8
	OffTTAG  = 10
	OffDATAO = 12
	OffDATAL = 16
)

// SetC2H writes the whole header of a C2HData with n bytes of data and returns PDO, where the data
// starts. extra is LastPDU, or LastPDU|Success, or 0.
func (d *Data) SetC2H(p *Params, extra Flags, cid uint16, datao, n uint32) int {
	return d.set(TypeC2HData, p, p.HPDA, extra, cid, 0, datao, n)
}

// SetH2C writes the whole header of a H2CData with n bytes of data and returns PDO, where the data
// starts.
func (d *Data) SetH2C(p *Params, extra Flags, cid, ttag uint16, datao, n uint32) int {
	return d.set(TypeH2CData, p, p.CPDA, extra, cid, ttag, datao, n)
}

func (d *Data) set(t Type, p *Params, align uint8, extra Flags, cid, ttag uint16, datao,
	n uint32,
) int {
	pdo := p.PDO(DataSize, align)
	d.Header().Set(t, p.dataFlags()|extra, DataSize, pdo, uint32(pdo+p.DataDigestSize())+n)
	d.fill(cid, ttag, datao, n)
	return pdo
}

// SetR2T writes a whole R2T without the digest.
func (d *Data) SetR2T(p *Params, cid, ttag uint16, offset, length uint32) {
	d.Header().Set(TypeR2T, p.headerFlags(), DataSize, 0, uint32(DataSize+p.HeaderDigestSize()))
	d.fill(cid, ttag, offset, length)
}

func (d *Data) fill(cid, ttag uint16, datao, n uint32) {
	binary.LittleEndian.PutUint16(d[OffCCCID:], cid)
	binary.LittleEndian.PutUint16(d[OffTTAG:], ttag)
	binary.LittleEndian.PutUint32(d[OffDATAO:], datao)
	binary.LittleEndian.PutUint32(d[OffDATAL:], n)
	binary.LittleEndian.PutUint32(d[20:], 0)
}

// Header is the common header.
func (d *Data) Header() *Header { return (*Header)(d[:HeaderSize]) }

// CCCID is the identifier of the data's command.
func (d *Data) CCCID() uint16 { return binary.LittleEndian.Uint16(d[OffCCCID:]) }

// TTAG is the controller's transfer tag in an R2T; H2CData repeats it.
func (d *Data) TTAG() uint16 { return binary.LittleEndian.Uint16(d[OffTTAG:]) }

// DATAO is the offset of this data within the command's data (R2TO).
func (d *Data) DATAO() uint32 { return binary.LittleEndian.Uint32(d[OffDATAO:]) }

// DATAL is the number of data bytes in this PDU, or that an R2T requests (R2TL).
func (d *Data) DATAL() uint32 { return binary.LittleEndian.Uint32(d[OffDATAL:]) }

// Check compares DATAL with the length implied by the common header, which CheckFromHost or
// CheckFromController has validated. It refuses a data PDU without data.
func (d *Data) Check(p *Params) Fault {
	if n := d.DATAL(); n == 0 || n != p.DataLength(d.Header()) {
		return Fault{FESInvalidHeader, OffDATAL}
	}
	return Fault{}
}
