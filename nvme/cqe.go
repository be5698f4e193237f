package nvme

import "encoding/binary"

// CQESize is the size of a completion queue entry in bytes (Base section 4.2).
const CQESize = 16

// CQE is a completion queue entry (Base section 4.2). The phase tag is 0 over fabrics.
type CQE [CQESize]byte

// Fill sets the entry: DW0 and DW1 (result), SQHD, CID, status. SQID is reserved on fabrics.
func (c *CQE) Fill(result uint64, sqhd, cid uint16, st Status) {
	binary.LittleEndian.PutUint64(c[0:], result)
	binary.LittleEndian.PutUint16(c[8:], sqhd)
	binary.LittleEndian.PutUint16(c[10:], 0)
	binary.LittleEndian.PutUint16(c[12:], cid)
	binary.LittleEndian.PutUint16(c[14:], uint16(st)<<1)
}

// DW0 is the command-specific result.
func (c *CQE) DW0() uint32 { return binary.LittleEndian.Uint32(c[0:]) }

// Result is DW0 and DW1 as one 64-bit value (Property Get).
func (c *CQE) Result() uint64 { return binary.LittleEndian.Uint64(c[0:]) }

// SQHD is the submission queue head pointer, FFFFh if flow control is disabled.
func (c *CQE) SQHD() uint16 { return binary.LittleEndian.Uint16(c[8:]) }

// CID is the identifier of the command completed.
func (c *CQE) CID() uint16 { return binary.LittleEndian.Uint16(c[12:]) }

// ReservedSet reports whether SQID or the phase tag, which are reserved over fabrics, is not zero
// (Base section 4.2.2).
func (c *CQE) ReservedSet() bool { return c[10]|c[11] != 0 || c[14]&1 != 0 }

// Status is the status field without the phase tag.
func (c *CQE) Status() Status { return Status(binary.LittleEndian.Uint16(c[14:]) >> 1) }
