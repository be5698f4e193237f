package backend

import "github.com/nvmf-target/nvmf-target/internal/mem"

// Lender is a Channel whose storage is memory that can be read in place: it lends what a read would copy.
//
// A loan is a range whose blocks do not change until it is returned. Writers wait for it, so it is returned as soon as the data has been
// sent, by the reactor that took it, and nothing that a loan waits for may wait for a writer. Loans count: several may cover a block.
type Lender interface {
	Channel
	// Lend appends to dst the memory that holds [off, off+n), in order, each segment within one mem.ChunkSize of its region, and
	// returns the extended slice. off and n are multiples of Info.BlockSize within Info.Size; n is positive. The memory may only
	// be read, and until Return. Lend returns dst and false if nothing is lent now, for instance because a writer waits: the
	// caller then submits an OpRead.
	Lend(dst []mem.Segment, off, n int64) ([]mem.Segment, bool)
	// Return ends one loan; off and n are those of Lend. Every loan must be returned before Close.
	Return(off, n int64)
}
