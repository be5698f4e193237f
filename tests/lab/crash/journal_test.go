package crash

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
)

// BlockSize is the unit of Writers in bytes. The disks of the lab write it atomically.
const BlockSize = 4096

// Journal records the operations of a Writer on the blocks of a namespace. Each write or zeroing of
// a block is its next generation, starting from 1.
type Journal struct {
	Seed uint64
	// Zero tells which generations of each block are zeroes: for generation g, Zero[block][g-1].
	Zero  [][]bool
	Marks []Mark
}

// Mark records the changes since the previous mark in the log. A mark is in the log before the next
// one is created.
type Mark struct {
	Durable []Gen // acknowledged as durable: these or later ones are there after any crash
	Begun   []Gen // the last ones that were begun
}

// Gen is a generation of a block.
type Gen struct{ Block, Gen uint32 }

// errLost means that data acknowledged as durable is missing.
var errLost = errors.New("acknowledged as durable, and lost")

// stamp fills b with the content of this generation of this block.
func (j *Journal) stamp(b []byte, block, gen uint32) {
	r := rand.NewPCG(j.Seed, uint64(block)<<32|uint64(gen))
	binary.LittleEndian.PutUint32(b, block)
	binary.LittleEndian.PutUint32(b[4:], gen)
	for i := 8; i < BlockSize; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
}

// check returns an error if b cannot be the content of block after a crash. want is the last
// generation acknowledged as durable, 0 if none was, and limit the last one that was begun.
func (j *Journal) check(b []byte, block, want, limit uint32) error {
	zero := j.Zero[block][:limit]
	if allZero(b) {
		if want == 0 {
			return nil
		}
		for _, z := range zero[want-1:] {
			if z {
				return nil
			}
		}
		return fmt.Errorf("block %d has zeroes instead of generation %d: %w", block, want, errLost)
	}
	gen := binary.LittleEndian.Uint32(b[4:])
	if binary.LittleEndian.Uint32(b) != block || gen == 0 || int(gen) > len(zero) || zero[gen-1] {
		return fmt.Errorf("block %d has what was never written there: % x", block, b[:16])
	}
	var full [BlockSize]byte
	if j.stamp(full[:], block, gen); string(full[:]) != string(b) {
		return fmt.Errorf("block %d is torn: it begins as generation %d", block, gen)
	}
	if gen < want {
		return fmt.Errorf("block %d has generation %d instead of %d: %w", block, gen, want, errLost)
	}
	return nil
}

func allZero(b []byte) bool {
	for i := 0; i < len(b); i += 8 {
		if binary.LittleEndian.Uint64(b[i:]) != 0 {
			return false
		}
	}
	return true
}
