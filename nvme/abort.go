package nvme

// AbortSQE is an Abort (Base section 5.1.1). Bit 0 of DW0 is set if nothing was aborted.
type AbortSQE SQE

// AbortNotDone is bit 0 of the result (IANP).
const AbortNotDone uint32 = 1

// Abort views s as an Abort command.
func (s *SQE) Abort() *AbortSQE { return (*AbortSQE)(s) }

// SQID is the queue of the command to abort (CDW10 bits 15:0).
func (s *AbortSQE) SQID() uint16 { return uint16((*SQE)(s).CDW(10)) }

// CID is the command to abort (CDW10 bits 31:16).
func (s *AbortSQE) CID() uint16 { return uint16((*SQE)(s).CDW(10) >> 16) }

// Set names the command to abort.
func (s *AbortSQE) Set(sqid, cid uint16) { (*SQE)(s).SetCDW(10, uint32(sqid)|uint32(cid)<<16) }
