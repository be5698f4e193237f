package nvme

import "encoding/binary"

// CopySQE is Copy (NVM section 3.3.2). SQE.SLBA is SDLBA; RWSQE.Flags has FUA, LR and DTYPE.
type CopySQE SQE

// Copy views s as a Copy command.
func (s *SQE) Copy() *CopySQE { return (*CopySQE)(s) }

// Ranges is the number of source ranges, 1 to 256 (NR, CDW12 bits 7:0, is 0-based).
func (s *CopySQE) Ranges() int { return int(s[48]) + 1 }

// Format is the format of the source ranges (DESFMT, CDW12 bits 11:8).
func (s *CopySQE) Format() CopyFormat { return CopyFormat(s[49] & 0xF) }

// Set writes SDLBA, the number of ranges, 1 to 256, their format, and the flags.
func (s *CopySQE) Set(sdlba uint64, ranges int, format CopyFormat, flags RWFlags) {
	binary.LittleEndian.PutUint64(s[40:], sdlba)
	binary.LittleEndian.PutUint32(s[48:], uint32(uint8(ranges-1))|uint32(format)<<8|uint32(flags))
}

// CopyFormat is the format of the source ranges of a Copy command.
type CopyFormat uint8

// The formats for namespaces without protection information, or with the 16-bit one. Ranges of
// CopyNamespaces have a namespace, and need the host's CDFE bit (Base section 5.1.25.1.14).
const (
	CopyRanges     CopyFormat = 0
	CopyNamespaces CopyFormat = 2
)

// Bit is the bit of the format in CDFS and CDFE.
func (f CopyFormat) Bit() uint16 { return 1 << f }

// CopyRangeSize is the size of a range; MaxCopyRanges is the maximum number of ranges in a command.
const (
	CopyRangeSize = 32
	MaxCopyRanges = 256
)

// CopyRange is a source range of the data of a Copy command.
type CopyRange [CopyRangeSize]byte

// SNSID is the namespace of the range, in format CopyNamespaces.
func (r *CopyRange) SNSID() uint32 { return binary.LittleEndian.Uint32(r[0:]) }

// SLBA is the first logical block.
func (r *CopyRange) SLBA() uint64 { return binary.LittleEndian.Uint64(r[8:]) }

// Blocks is the number of logical blocks, counted from 1.
func (r *CopyRange) Blocks() uint32 { return uint32(binary.LittleEndian.Uint16(r[16:])) + 1 }

// FastOnly reports whether the command has to fail if the copy would be slower than reading and
// writing (SOPT.FCO), in format CopyNamespaces.
func (r *CopyRange) FastOnly() bool { return r[23]&0x80 != 0 }

// Set writes the range. snsid is 0 in format CopyRanges; blocks is 1 to 65536.
func (r *CopyRange) Set(snsid uint32, slba uint64, blocks uint32) {
	*r = CopyRange{}
	binary.LittleEndian.PutUint32(r[0:], snsid)
	binary.LittleEndian.PutUint64(r[8:], slba)
	binary.LittleEndian.PutUint16(r[16:], uint16(blocks-1))
}
