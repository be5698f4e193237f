package backend

import "github.com/nvmf-target/nvmf-target/internal/mem"

// ZeroCopyReader is a Channel to storage in memory that can be read without a copy.
//
// A zero-copy read shows the content of a range at one moment, block by block: the memory does not
// change until the read ends, even if the range is written. That costs the device memory, or blocks
// writers. So the reactor that started a read ends it as soon as the data has been sent, and
// nothing that delays the end may wait for a writer. Several reads may cover the same block.
type ZeroCopyReader interface {
	Channel
	// StartZeroCopyRead appends to dst the memory that holds [off, off+n), in order, each segment
	// within one mem.ChunkSize of its region, and returns the extended slice. off and n are
	// multiples of Info.BlockSize and within Info.Size; n is positive. The memory may only be read,
	// and only until EndZeroCopyRead.
	//
	// If the range cannot be read in place now, it returns dst and false, for an OpRead.
	StartZeroCopyRead(dst []mem.Segment, off, n int64) ([]mem.Segment, bool)
	// EndZeroCopyRead ends one read. segs are the segments that StartZeroCopyRead appended for off
	// and n. Every read ends before Close.
	EndZeroCopyRead(segs []mem.Segment, off, n int64)
	// WriterWaits reports whether a change waits for zero-copy reads, on any channel.
	WriterWaits() bool
}

// ZeroCopyWriter is a Channel to storage in memory that data can be received into. The received
// memory becomes the content of the blocks without a copy, each block as a whole.
type ZeroCopyWriter interface {
	Channel
	// StartZeroCopyWrite appends to dst memory for n bytes to be written at off, in order, each
	// segment within one mem.ChunkSize of its region, and returns the extended slice. off and n are
	// as for StartZeroCopyRead. The memory belongs to the caller until it commits the write, by an
	// OpWrite with the flag ZeroCopy and these segs, off and n, or aborts it. The blocks do not
	// change before the commit.
	//
	// If there is no memory now, or if a copy is cheaper, StartZeroCopyWrite returns dst and false,
	// and the caller submits an OpWrite with its own memory.
	StartZeroCopyWrite(dst []mem.Segment, off, n int64) ([]mem.Segment, bool)
	// AbortZeroCopyWrite returns the memory of a write that will not be committed. Every write is
	// committed or aborted before Close.
	AbortZeroCopyWrite(segs []mem.Segment)
}
