package nvme

import "encoding/binary"

// DSMSQE is a Dataset Management command (NVM section 3.3.3).
type DSMSQE SQE

// DSM views s as a Dataset Management command.
func (s *SQE) DSM() *DSMSQE { return (*DSMSQE)(s) }

// Ranges is the number of ranges, 1 to 256 (CDW10 bits 7:0 are 0-based).
func (s *DSMSQE) Ranges() int { return int(s[40]) + 1 }

// Deallocate is AD (CDW11 bit 2); the other attributes are hints.
func (s *DSMSQE) Deallocate() bool { return s[44]&4 != 0 }

// Set writes the number of ranges, 1 to 256, and AD.
func (s *DSMSQE) Set(ranges int, deallocate bool) {
	s[40], s[44] = byte(ranges-1), 0
	if deallocate {
		s[44] = 4
	}
}

// DSMRangeSize is the size of a range; MaxDSMRanges is the maximum number of ranges in a command.
const (
	DSMRangeSize = 16
	MaxDSMRanges = 256
)

// DSMRange is a range of the data of a Dataset Management command.
type DSMRange [DSMRangeSize]byte

// Blocks is the number of logical blocks; unlike NLB it is not 0-based.
func (r *DSMRange) Blocks() uint32 { return binary.LittleEndian.Uint32(r[4:]) }

// SLBA is the first logical block.
func (r *DSMRange) SLBA() uint64 { return binary.LittleEndian.Uint64(r[8:]) }

// Set writes the range, without attributes.
func (r *DSMRange) Set(slba uint64, blocks uint32) {
	*r = DSMRange{}
	binary.LittleEndian.PutUint32(r[4:], blocks)
	binary.LittleEndian.PutUint64(r[8:], slba)
}
