package dispatch

import (
	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// StartZeroCopy appends the memory of the blocks of a read to segs, or free memory that becomes the
// blocks of a write. It returns false if that is not possible, or not now. EndZeroCopy gives the
// memory back.
func (ch *Channel) StartZeroCopy(io *backend.IO, segs []mem.Segment) (_ []mem.Segment, ok bool) {
	switch {
	case ch.quiesce != QuiesceNothing:
	case io.Op == backend.OpRead && ch.reader != nil:
		segs, ok = ch.reader.StartZeroCopyRead(segs, io.Off, io.Len)
	case io.Op == backend.OpWrite && ch.writer != nil:
		if segs, ok = ch.writer.StartZeroCopyWrite(segs, io.Off, io.Len); ok {
			io.Flags |= backend.ZeroCopy
		}
	}
	if ok {
		ch.zeroCopies++
	}
	return segs, ok
}

// EndZeroCopy gives memory of StartZeroCopy back, unless it is the content of blocks now.
func (ch *Channel) EndZeroCopy(io *backend.IO, segs []mem.Segment) {
	ch.zeroCopies--
	switch {
	case io.Op == backend.OpRead:
		ch.reader.EndZeroCopyRead(segs, io.Off, io.Len)
	case io.Flags&backend.ZeroCopy != 0:
		ch.writer.AbortZeroCopyWrite(segs)
		io.Flags &^= backend.ZeroCopy
	}
	ch.settle()
}

// WriterWaits reports whether something waits for the end of the zero copy of an IO.
func (ch *Channel) WriterWaits(io *backend.IO) bool {
	return ch.quiesce != QuiesceNothing || io.Op == backend.OpRead && ch.reader.WriterWaits()
}

// CompletesAtOnce reports whether a write that is queued now is expected to complete in Process.
func (ch *Channel) CompletesAtOnce() bool {
	return ch.writer != nil && ch.quiesce == QuiesceNothing && !ch.busy()
}
