package load

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// A verified block begins with this text, the seed, the number of the block in the namespace, and
// the pass that wrote it. The rest of the block follows from these.
const (
	verifyMagic  = 0x7274_6e65_6365_7462
	verifyHeader = 32 // bytes
)

// Mismatch is a block with other data than was written.
type Mismatch struct {
	Block uint64
	What  string
}

func (m *Mismatch) Error() string { return fmt.Sprintf("block %d %s", m.Block, m.What) }

// word returns the next word of the pattern after x (splitmix64).
func word(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

const wordStep = 0x9e3779b97f4a7c15

// first returns the first word of the pattern of a block.
func first(seed, block, pass uint64) uint64 { return word(seed ^ word(block^word(pass+wordStep))) }

// fill writes the pattern of the blocks from block on into data.
func fill(data []byte, size int, seed, block, pass uint64) {
	le := binary.LittleEndian
	for ; len(data) > 0; data, block = data[size:], block+1 {
		b := data[:size]
		le.PutUint64(b, verifyMagic)
		le.PutUint64(b[8:], seed)
		le.PutUint64(b[16:], block)
		le.PutUint64(b[24:], pass)
		x := first(seed, block, pass)
		for i := verifyHeader; i < size; i += 8 {
			x += wordStep
			le.PutUint64(b[i:], word(x))
		}
	}
}

// compare returns a *Mismatch if data differs from the data of fill.
func compare(data []byte, size int, seed, block, pass uint64) error {
	le := binary.LittleEndian
	for ; len(data) > 0; data, block = data[size:], block+1 {
		b := data[:size]
		if le.Uint64(b) != verifyMagic || le.Uint64(b[8:]) != seed || le.Uint64(b[16:]) != block ||
			le.Uint64(b[24:]) != pass {
			return &Mismatch{block, foreign(b, seed, block, pass)}
		}
		x := first(seed, block, pass)
		for i := verifyHeader; i < size; i += 8 {
			x += wordStep
			if got := le.Uint64(b[i:]); got != word(x) {
				return &Mismatch{block, fmt.Sprintf(
					"is damaged: byte %d on is %016x, %016x was written", i,
					bits.ReverseBytes64(got), bits.ReverseBytes64(word(x)))}
			}
		}
	}
	return nil
}

// foreign describes data that was found instead of the header of a block.
func foreign(b []byte, seed, block, pass uint64) string {
	le := binary.LittleEndian
	zero := true
	for _, c := range b {
		zero = zero && c == 0
	}
	switch {
	case zero:
		return "is all zeroes: the written data is lost"
	case le.Uint64(b) != verifyMagic:
		return fmt.Sprintf("has other data: it begins with % x", b[:16])
	case le.Uint64(b[8:]) != seed:
		return fmt.Sprintf("has data of another run, with seed %d instead of %d",
			le.Uint64(b[8:]), seed)
	case le.Uint64(b[16:]) != block:
		return fmt.Sprintf("has the data of block %d, written in pass %d", le.Uint64(b[16:]),
			le.Uint64(b[24:]))
	}
	return fmt.Sprintf("has the data of pass %d, not of pass %d: a lost write", le.Uint64(b[24:]),
		pass)
}

// permutation is a pseudorandom permutation of the numbers below n.
type permutation struct{ n, factor, shift uint64 }

func newPermutation(n, seed uint64) permutation {
	p := permutation{n: n, shift: seed % n, factor: n/8*5 + word(seed)%(n/8+1)}
	for gcd(p.factor, n) != 1 {
		p.factor++
	}
	return p
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (p *permutation) at(i uint64) uint64 {
	high, low := bits.Mul64(i, p.factor)
	low, carry := bits.Add64(low, p.shift, 0)
	return bits.Rem64(high+carry, low, p.n)
}
