package pdu

import "encoding/binary"

// HeaderSize is the size of the common header in bytes (TCP section 3.6.2.1).
const HeaderSize = 8

// Header is common to all PDUs: type, flags, header length without digest, data offset, PDU length.
type Header [HeaderSize]byte

// Byte offsets of the common header, for the FEI of a Fault.
const (
	OffType  = 0
	OffFlags = 1
	OffHLEN  = 2
	OffPDO   = 3
	OffPLEN  = 4
)

// Type is byte 0 of a PDU (TCP section 3.3, figure 10). Even types go from the host to the
// controller.
type Type uint8

// The PDU types.
const (
	TypeICReq       Type = 0x00
	TypeICResp      Type = 0x01
	TypeH2CTermReq  Type = 0x02
	TypeC2HTermReq  Type = 0x03
	TypeCapsuleCmd  Type = 0x04
	TypeCapsuleResp Type = 0x05
	TypeH2CData     Type = 0x06
	TypeC2HData     Type = 0x07
	TypeR2T         Type = 0x09
)

var typeNames = [...]string{
	TypeICReq: "ICReq", TypeICResp: "ICResp", TypeH2CTermReq: "H2CTermReq",
	TypeC2HTermReq: "C2HTermReq",
	TypeCapsuleCmd: "CapsuleCmd", TypeCapsuleResp: "CapsuleResp", TypeH2CData: "H2CData",
	TypeC2HData: "C2HData",
	TypeR2T:     "R2T",
}

// String returns the name in the specification.
func (t Type) String() string {
	if int(t) < len(typeNames) && typeNames[t] != "" {
		return typeNames[t]
	}
	const hex = "0123456789ABCDEF"
	return "type " + string([]byte{hex[t>>4], hex[t&15], 'h'})
}

// HLEN is the fixed header length of a type, without the header digest; 0 for an unknown type.
func (t Type) HLEN() int {
	if int(t) < len(hlens) {
		return int(hlens[t])
	}
	return 0
}

var hlens = [...]uint8{
	TypeICReq: ICSize, TypeICResp: ICSize, TypeH2CTermReq: TermReqSize,
	TypeC2HTermReq: TermReqSize,
	TypeCapsuleCmd: CapsuleCmdSize, TypeCapsuleResp: CapsuleRespSize, TypeH2CData: DataSize,
	TypeC2HData: DataSize,
	TypeR2T:     DataSize,
}

// Flags is byte 1 of a PDU.
type Flags uint8

// The flags. LastPDU belongs to H2CData and C2HData, Success to C2HData only: no CapsuleResp
// follows, the command succeeded (TCP section 3.6.2.9).
const (
	HDGSTF  Flags = 1 << 0
	DDGSTF  Flags = 1 << 1
	LastPDU Flags = 1 << 2
	Success Flags = 1 << 3
)

// Type is the PDU type.
func (h *Header) Type() Type { return Type(h[OffType]) }

// Flags are the PDU's flags.
func (h *Header) Flags() Flags { return Flags(h[OffFlags]) }

// HLEN is the length of the header without its digest.
func (h *Header) HLEN() int { return int(h[OffHLEN]) }

// PDO is the offset of the data from the start of the PDU, 0 if there is none.
func (h *Header) PDO() int { return int(h[OffPDO]) }

// PLEN is the length of the whole PDU with digests and padding.
func (h *Header) PLEN() uint32 { return binary.LittleEndian.Uint32(h[OffPLEN:]) }

// Set writes all of the common header.
func (h *Header) Set(t Type, f Flags, hlen, pdo int, plen uint32) {
	h[OffType], h[OffFlags], h[OffHLEN], h[OffPDO] = byte(t), byte(f), byte(hlen), byte(pdo)
	binary.LittleEndian.PutUint32(h[OffPLEN:], plen)
}
