package target

import (
	"github.com/nvmf-target/nvmf-target/backend"
)

const (
	// zeroPiece is how much of a Write Zeroes a device has at a time, in bytes. Freeing the memory
	// of so much takes tens of microseconds.
	zeroPiece = int64(1 << 20)
	// discardPiece is the same of a Dataset Management: thin storage frees chunks of megabytes, and
	// only as a whole.
	discardPiece = int64(8 << 20)
	// zeroPieces is the largest number of pieces of a command, besides one more for each range.
	// Pieces of large discards are larger: hosts discard terabytes within their time limits.
	zeroPieces = 4096
)

// zero is the part of a compound that writes zeroes or deallocates, piece by piece.
type zero struct {
	ranges []backend.Range
	at     int64 // how much of the range compound.next was begun, in bytes
	total  int64 // of the ranges, in bytes
	piece  int64 // bytes; pieces end at multiples of it
	op     backend.Op
	flags  backend.Flags
}

func (z *zero) add(off, n int64) {
	z.ranges = append(z.ranges, backend.Range{Off: off, End: off + n})
	z.total += n
}

// startZero begins to zero the ranges of a compound. The limits have been asked for the first
// piece.
func (m *compound) startZero(h *Handler, op backend.Op, flags backend.Flags) {
	z := &m.zero
	z.op, z.flags, z.piece = op, flags, zeroPiece
	if op == backend.OpDiscard {
		for z.piece = discardPiece; z.piece*zeroPieces < z.total; {
			z.piece *= 2
		}
	}
	m.steps, m.flow, m.paid = len(z.ranges), m.cmd.flow, true
	m.advance(h)
}

func executeWriteZeroes(h *Handler, c *cmd) {
	if h.postpones(c) {
		return
	}
	m := h.newCompound(c)
	m.ch = c.ch
	m.zero.add(c.io.Off, c.io.Len)
	m.startZero(h, backend.OpWriteZeroes, c.io.Flags)
}

// next returns the next piece of the rest of a range.
func (z *zero) next(r backend.Range) backend.Range {
	from := r.Off + z.at
	return backend.Range{Off: from, End: min(r.End, from&^(z.piece-1)+z.piece)}
}

// fillZero prepares the next piece. Limits count every piece of a Write Zeroes and every range of a
// Dataset Management.
func (m *compound) fillZero(o *compoundIO) {
	z := &m.zero
	r := z.ranges[m.next]
	p := z.next(r)
	o.Op, o.Flags, o.Off, o.Len = z.op, z.flags, p.Off, p.End-p.Off
	m.paid = z.op == backend.OpDiscard
	if z.at += o.Len; p.End == r.End {
		m.next, z.at, m.paid = m.next+1, 0, false
	}
}
