package backend

import "github.com/nvmf-target/nvmf-target/internal/mem"

// ZeroCopyReader is a Channel whose storage is memory that can be read in place: it lends what a
// read would copy.
//
// A loan is the content of a range at one moment, block by block: the memory does not change until
// it is returned, whatever is written meanwhile. That costs the device memory, or makes writers
// wait, so a loan is returned as soon as the data has been sent, by the reactor that took it, and
// nothing that a loan waits for may wait for a writer. Loans count: several may cover a block.
type ZeroCopyReader interface {
	Channel
	// StartZeroCopyRead appends to dst the memory that holds [off, off+n), in order, each segment
	// within one mem.ChunkSize of its region, and returns the extended slice. off and n are
	// multiples of Info.BlockSize within Info.Size; n is positive. The memory may only be read, and
	// until Return. StartZeroCopyRead returns dst and false if nothing is lent now: the caller then
	// submits an OpRead.
	StartZeroCopyRead(dst []mem.Segment, off, n int64) ([]mem.Segment, bool)
	// EndZeroCopyRead ends one loan; segs are what Lend appended for off and n. Every loan must be
	// returned before Close.
	EndZeroCopyRead(segs []mem.Segment, off, n int64)
}

// ZeroCopyWriter is a Channel whose storage is memory that data can be received into: it reserves
// free memory for a write, which then changes the blocks without a copy, each as a whole.
type ZeroCopyWriter interface {
	Channel
	// StartZeroCopyWrite appends to dst memory for n bytes that are to be written at off, in order,
	// each segment within one mem.ChunkSize of its region, and returns the extended slice. off and
	// n are as for Lend. Nobody else reads or writes the memory until it is submitted, as the Segs
	// of an OpWrite with the flag Reserved and this off and n, or given to Cancel.
	// StartZeroCopyWrite returns dst and false if there is none for now, or if a copy is better:
	// the caller then submits memory of its own.
	StartZeroCopyWrite(dst []mem.Segment, off, n int64) ([]mem.Segment, bool)
	// AbortZeroCopyWrite takes back what Reserve appended and no write has consumed. Every
	// reservation ends before Close.
	AbortZeroCopyWrite(segs []mem.Segment)
}
