package nvme

import (
	"encoding/binary"
	"fmt"
)

// PropertySQE is a Property Get or Property Set command (Base sections 6.5 and 6.6).
type PropertySQE SQE

// Property views s as a Property command.
func (s *SQE) Property() *PropertySQE { return (*PropertySQE)(s) }

// Size is the size of the property in bytes, 4 or 8 (ATTRIB bits 2:0: 000b and 001b), or 0 for a
// reserved value.
func (s *PropertySQE) Size() int {
	switch s[40] & 7 {
	case 0:
		return 4
	case 1:
		return 8
	}
	return 0
}

// Offset is OFST, the offset of the property.
func (s *PropertySQE) Offset() PropertyOffset {
	return PropertyOffset(binary.LittleEndian.Uint32(s[44:]))
}

// Value is the value of a Property Set: all 8 bytes; the upper 4 are reserved for a property of 4
// bytes.
func (s *PropertySQE) Value() uint64 { return binary.LittleEndian.Uint64(s[48:]) }

// Set makes a Property Get of the offset, or a Property Set with FabricsPropertySet.
func (s *PropertySQE) Set(typ FabricsType, off PropertyOffset, value uint64) {
	s[0], s[4] = byte(FabricsOpcode), byte(typ)
	s[40] = 0
	if off.Size() == 8 {
		s[40] = 1
	}
	binary.LittleEndian.PutUint32(s[44:], uint32(off))
	binary.LittleEndian.PutUint64(s[48:], value)
}

// PropertyOffset names a controller property (Base section 3.1.4).
type PropertyOffset uint32

// The properties that exist over fabrics.
const (
	PropertyCAP  PropertyOffset = 0x00
	PropertyVS   PropertyOffset = 0x08
	PropertyCC   PropertyOffset = 0x14
	PropertyCSTS PropertyOffset = 0x1C
	PropertyNSSR PropertyOffset = 0x20
	PropertyCRTO PropertyOffset = 0x68
)

// Size is the size of the property in bytes: 8 for CAP, else 4.
func (o PropertyOffset) Size() int {
	if o == PropertyCAP {
		return 8
	}
	return 4
}

// CAP is Controller Capabilities (Base section 3.1.4.1).
type CAP uint64

// CAP bits. CRMS (bits 60:59) needs the CRTO property.
const (
	CAPCQR       CAP = 1 << 16 // contiguous queues required: always 1 over fabrics
	CAPCSSNVM    CAP = 1 << 37 // CSS: the NVM command set
	CAPCSSIOSets CAP = 1 << 43 // CSS: I/O command sets by CC.CSS 110b
	CAPCRMSMedia CAP = 1 << 59 // CRWMS: controller ready with media
)

// MakeCAP makes a CAP for queues of at most entries (at least 2) and a worst-case ready time in
// units of 500 ms, with CQR set and 4 KiB memory pages.
func MakeCAP(entries int, to uint8, flags CAP) CAP {
	return CAP(uint16(entries-1)) | CAPCQR | CAP(to)<<24 | flags
}

// MQES is the largest queue size, 0-based.
func (c CAP) MQES() uint16 { return uint16(c) }

// TO is the worst-case time to become ready or not ready, units of 500 ms.
func (c CAP) TO() uint8 { return uint8(c >> 24) }

// MPSMin is the smallest memory page size in bytes, the unit of MDTS.
func (c CAP) MPSMin() int { return 1 << (12 + c>>48&0xF) }

// Version is the Version property and VER of Identify Controller (Base section 3.1.4.2).
type Version uint32

// The versions a target may report.
const (
	Version14 Version = 0x10400
	Version20 Version = 0x20000
	Version21 Version = 0x20100
)

// String is "2.1.0".
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v>>16, v>>8&0xFF, v&0xFF) }

// CC is Controller Configuration (Base section 3.1.4.5).
type CC uint32

// CCEnable is CC.EN.
const CCEnable CC = 1 << 0

// CCShutdownNormal and CCShutdownAbrupt are the values of CC.SHN, in place.
const (
	CCShutdownNormal CC = 1 << 14
	CCShutdownAbrupt CC = 2 << 14
)

// CSSNVM and CSSAllIO are values of CC.CSS.
const (
	CSSNVM   = 0
	CSSAllIO = 6 // all supported I/O command sets
)

// CCLinux is the value that a Linux host writes to enable a controller: 4 KiB pages, round robin,
// entries of 64 and 16 bytes, NVM. If CAP has CAPCSSIOSets, it selects CSSAllIO instead.
const CCLinux = CCEnable | 6<<16 | 4<<20

// EN is the enable bit.
func (c CC) EN() bool { return c&CCEnable != 0 }

// CSS is the I/O Command Set Selected, bits 6:4.
func (c CC) CSS() uint8 { return uint8(c>>4) & 7 }

// MPS is the memory page size, bits 10:7: 1<<(12+MPS) bytes.
func (c CC) MPS() uint8 { return uint8(c>>7) & 0xF }

// AMS is the arbitration mechanism, bits 13:11.
func (c CC) AMS() uint8 { return uint8(c>>11) & 7 }

// SHN is the shutdown notification, bits 15:14: 0 none, 1 normal, 2 abrupt, 3 reserved.
func (c CC) SHN() uint8 { return uint8(c>>14) & 3 }

// IOSQES is the I/O submission queue entry size, bits 19:16, a power of two.
func (c CC) IOSQES() uint8 { return uint8(c>>16) & 0xF }

// IOCQES is the I/O completion queue entry size, bits 23:20, a power of two.
func (c CC) IOCQES() uint8 { return uint8(c>>20) & 0xF }

// CRIME is the Controller Ready Independent of Media Enable bit.
func (c CC) CRIME() bool { return c>>24&1 != 0 }

// Reserved is the bits that must be zero, 31:25 and 3:1.
func (c CC) Reserved() CC { return c & 0xFE00000E }

// CSTS is Controller Status (Base section 3.1.4.6).
type CSTS uint32

// CSTS bits; the Shutdown constants are the values of SHST, in place.
const (
	CSTSReady             CSTS = 1 << 0
	CSTSFatal             CSTS = 1 << 1
	CSTSShutdownOccurring CSTS = 1 << 2
	CSTSShutdownComplete  CSTS = 2 << 2
	CSTSNSSRO             CSTS = 1 << 4
)

// RDY reports whether the controller is ready to process commands.
func (c CSTS) RDY() bool { return c&CSTSReady != 0 }

// CFS reports whether the controller has failed fatally.
func (c CSTS) CFS() bool { return c&CSTSFatal != 0 }

// SHST is the shutdown status, bits 3:2: 0 normal operation, 1 occurring, 2 complete.
func (c CSTS) SHST() uint8 { return uint8(c>>2) & 3 }

// CRTO is Controller Ready Timeouts (Base section 3.1.4.21), units of 500 ms.
type CRTO uint32

// MakeCRTO makes a CRTO of the ready-with-media and ready-independent-of-media timeouts.
func MakeCRTO(crwmt, crimt uint16) CRTO { return CRTO(crwmt) | CRTO(crimt)<<16 }
