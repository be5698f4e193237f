package backend

import (
	"fmt"

	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// The logical block sizes that devices support, in bytes.
const (
	MinBlockSize = 512
	MaxBlockSize = 64 << 10
)

// CheckGeometry returns an error if a device cannot have this size and logical block size, both in
// bytes. The error describes the possible values.
func CheckGeometry(size int64, blockSize int) error {
	switch {
	case blockSize < MinBlockSize || blockSize > MaxBlockSize || blockSize&(blockSize-1) != 0:
		return fmt.Errorf("block size %d: must be a power of two from %d to %d", blockSize,
			MinBlockSize, MaxBlockSize)
	case size <= 0:
		return fmt.Errorf("size %d: must be positive", size)
	case size%int64(blockSize) != 0:
		return fmt.Errorf(
			"size %d: must be a multiple of the block size %d; %d is the next smaller one",
			size, blockSize, size-size%int64(blockSize))
	}
	return nil
}

// Check returns an error if the IO is not within size bytes, or its segments do not have Len.
// Submitters have checked that; devices do again, since data beyond an end is of others.
func (io *IO) Check(size int64) error {
	if io.Op == OpFlush {
		return nil
	}
	if uint64(io.Off) > uint64(size) || uint64(io.Len) > uint64(size-io.Off) {
		return fmt.Errorf("%v of %d bytes at %d of %d: %w", io.Op, io.Len, io.Off, size,
			ErrOutOfRange)
	}
	if io.Op <= OpWrite && int64(mem.Length(io.Segs)) != io.Len {
		return fmt.Errorf("%v of %d bytes with %d bytes of memory: %w", io.Op, io.Len,
			mem.Length(io.Segs), ErrIO)
	}
	return nil
}

var opNames = map[Op]string{
	OpRead: "read", OpWrite: "write", OpFlush: "flush", OpWriteZeroes: "write zeroes",
	OpDiscard: "discard", OpWriteUncorrectable: "write uncorrectable",
}

// String returns the operation's name.
func (op Op) String() string {
	if name, ok := opNames[op]; ok {
		return name
	}
	return fmt.Sprintf("operation %d", uint8(op))
}
