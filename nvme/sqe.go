package nvme

import "encoding/binary"

// SQESize is the size of a submission queue entry in bytes (Base section 4.1).
const SQESize = 64

// SQE is a submission queue entry in the common format (Base figure 92). The methods Identify,
// GetLog, Features, Abort, Connect, Property, RW, DSM and Reservation view the same bytes as one
// command with its own fields.
type SQE [SQESize]byte

// Opcode is byte 0.
func (s *SQE) Opcode() Opcode { return Opcode(s[0]) }

// Flags is byte 1: FUSE in bits 1:0, PSDT in bits 7:6.
func (s *SQE) Flags() uint8 { return s[1] }

// FUSE is the fused operation field, bits 9:8 of CDW0.
func (s *SQE) FUSE() uint8 { return s[1] & 3 }

// PSDT is the "PRP or SGL for Data Transfer" field, bits 15:14 of CDW0.
func (s *SQE) PSDT() uint8 { return s[1] >> 6 }

// CID is the command identifier.
func (s *SQE) CID() uint16 { return binary.LittleEndian.Uint16(s[2:]) }

// NSID is the namespace identifier.
func (s *SQE) NSID() uint32 { return binary.LittleEndian.Uint32(s[4:]) }

// SGL1 is the first SGL descriptor (bytes 24 to 39, the DPTR field).
func (s *SQE) SGL1() *SGLDescriptor { return (*SGLDescriptor)(s[24:40]) }

// CDW returns command dword n, 0 to 15.
func (s *SQE) CDW(n int) uint32 { return binary.LittleEndian.Uint32(s[4*n:]) }

// SetOpcode, SetFlags, SetCID, SetNSID and SetCDW write the fields that the getters of the same
// name read; SetCDW64 writes command dwords n and n+1.
func (s *SQE) SetOpcode(o Opcode)       { s[0] = byte(o) }
func (s *SQE) SetFlags(f uint8)         { s[1] = f }
func (s *SQE) SetCID(c uint16)          { binary.LittleEndian.PutUint16(s[2:], c) }
func (s *SQE) SetNSID(n uint32)         { binary.LittleEndian.PutUint32(s[4:], n) }
func (s *SQE) SetCDW(n int, v uint32)   { binary.LittleEndian.PutUint32(s[4*n:], v) }
func (s *SQE) SetCDW64(n int, v uint64) { binary.LittleEndian.PutUint64(s[4*n:], v) }

// SLBA is the starting LBA of the NVM commands that have one (NVM section 3.3, CDW10 and CDW11).
func (s *SQE) SLBA() uint64 { return binary.LittleEndian.Uint64(s[40:]) }

// NLB is the number of logical blocks, counted from 1 (CDW12 bits 15:0, 0-based; NVM section 3.3).
func (s *SQE) NLB() uint32 { return uint32(binary.LittleEndian.Uint16(s[48:])) + 1 }
