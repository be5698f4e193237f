package pdu

import "encoding/binary"

// DataSize is the size of the header of a H2CData or C2HData in bytes.
const DataSize = 24

// Data is the header of H2CData and C2HData (TCP sections 3.6.2.8 and 3.6.2.9); TTAG is reserved in
// C2HData.
type Data [DataSize]byte

// Byte offsets of Data and R2T, for the FEI of a Fault.
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
	binary.LittleEndian.PutUint16(d[OffCCCID:], cid)
	binary.LittleEndian.PutUint16(d[OffTTAG:], ttag)
	binary.LittleEndian.PutUint32(d[OffDATAO:], datao)
	binary.LittleEndian.PutUint32(d[OffDATAL:], n)
	binary.LittleEndian.PutUint32(d[20:], 0)
	return pdo
}

// Header is the common header.
func (d *Data) Header() *Header { return (*Header)(d[:HeaderSize]) }

// CCCID is the identifier of the data's command.
func (d *Data) CCCID() uint16 { return binary.LittleEndian.Uint16(d[OffCCCID:]) }

// TTAG is the transfer tag of the R2T.
func (d *Data) TTAG() uint16 { return binary.LittleEndian.Uint16(d[OffTTAG:]) }

// DATAO is the offset of this data within the command's data.
func (d *Data) DATAO() uint32 { return binary.LittleEndian.Uint32(d[OffDATAO:]) }

// DATAL is the number of data bytes in this PDU.
func (d *Data) DATAL() uint32 { return binary.LittleEndian.Uint32(d[OffDATAL:]) }

// Check compares DATAL with the length implied by the common header, which CheckFromHost or
// CheckFromController has validated. It refuses a data PDU without data.
func (d *Data) Check(p *Params) Fault {
	if n := d.DATAL(); n == 0 || n != p.DataLength(d.Header()) {
		return Fault{FESInvalidHeader, OffDATAL}
	}
	return Fault{}
}
