package compound

import "github.com/nvmf-target/nvmf-target/backend"

const (
	// ZeroPiece is how much of a Write Zeroes a device has at a time, in bytes. Some storage writes
	// it, and RAM is freed page by page, which takes 25 to 75 µs.
	ZeroPiece = 2 * Chunk
	// discardPiece is that of a Dataset Management: thin storage frees whole chunks of MiB.
	discardPiece = int64(8 << 20)
	// zeroPieces is the largest number of pieces of a command, besides one more for each range.
	// Pieces of large discards are larger: hosts discard terabytes within their time limits.
	zeroPieces = 4096
)

// zero is the part of a compound that writes zeroes or deallocates, piece by piece.
type zero struct {
	ranges []backend.Range
	at     int64 // how much of the range Compound.next was begun, in bytes
	total  int64 // of the ranges, in bytes
	piece  int64 // bytes; pieces end at multiples of it
	op     backend.Op
	flags  backend.Flags
}

// Add adds n bytes at off to the ranges of the next Zero.
func (m *Compound) Add(off, n int64) {
	z := &m.zero
	z.ranges = append(z.ranges, backend.Range{Off: off, End: off + n})
	z.total += n
}

// Zero begins to zero or deallocate the ranges, by turns in flow. The limits have been asked for
// the first piece.
func (m *Compound) Zero(ch Channel, flow *Flow, op backend.Op, flags backend.Flags) {
	z := &m.zero
	z.op, z.flags, z.piece = op, flags, ZeroPiece
	if op == backend.OpDiscard {
		for z.piece = discardPiece; z.piece*zeroPieces < z.total; {
			z.piece *= 2
		}
	}
	m.ch, m.flow, m.steps, m.taken = ch, flow, len(z.ranges), true
	m.advance()
}

// next returns the next piece of the rest of a range.
func (z *zero) next(r backend.Range) backend.Range {
	from := r.Off + z.at
	return backend.Range{Off: from, End: min(r.End, from&^(z.piece-1)+z.piece)}
}

// fillZero prepares the next piece. Limits count pieces, or ranges of Dataset Management.
func (m *Compound) fillZero(o *IO) {
	z := &m.zero
	r := z.ranges[m.next]
	p := z.next(r)
	o.Op, o.Flags, o.Off, o.Len = z.op, z.flags, p.Off, p.End-p.Off
	m.taken = z.op == backend.OpDiscard
	if z.at += o.Len; p.End == r.End {
		m.next, z.at, m.taken = m.next+1, 0, false
	}
}
