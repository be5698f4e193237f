package nvme

import "encoding/binary"

// RWSQE is a Read, Write or Write Zeroes command (NVM sections 3.3.4, 3.3.6 and 3.3.8). SLBA and
// NLB are methods of SQE.
type RWSQE SQE

// RW views s as a Read, Write or Write Zeroes command.
func (s *SQE) RW() *RWSQE { return (*RWSQE)(s) }

// RWFlags is CDW12 without NLB.
type RWFlags uint32

// The flags of CDW12.
const (
	RWLimitedRetry RWFlags = 1 << 31   // LR
	RWFUA          RWFlags = 1 << 30   // force unit access
	RWDeallocate   RWFlags = 1 << 25   // DEAC, Write Zeroes only
	RWDirective    RWFlags = 0xF << 20 // DTYPE, Write only
)

// Flags is CDW12 without NLB.
func (s *RWSQE) Flags() RWFlags { return RWFlags(binary.LittleEndian.Uint32(s[48:]) &^ 0xFFFF) }

// Set writes SLBA, the number of blocks counted from 1 (1 to 65536), and the flags.
func (s *RWSQE) Set(slba uint64, blocks uint32, flags RWFlags) {
	binary.LittleEndian.PutUint64(s[40:], slba)
	binary.LittleEndian.PutUint32(s[48:], uint32(uint16(blocks-1))|uint32(flags))
}
