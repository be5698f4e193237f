package targettest

// Uncorrectable are the blocks of a namespace that a Write Uncorrectable has marked (NVM section
// 3.3.7). One goroutine uses them.
type Uncorrectable struct{ marked map[uint64]bool }

// Mark marks n blocks from slba on.
func (u *Uncorrectable) Mark(slba uint64, n uint32) {
	if u.marked == nil {
		u.marked = map[uint64]bool{}
	}
	for i := range uint64(n) {
		u.marked[slba+i] = true
	}
}

// Marked reports whether a read of these blocks fails.
func (u *Uncorrectable) Marked(slba uint64, n uint32) bool {
	for i := range uint64(n) {
		if u.marked[slba+i] {
			return true
		}
	}
	return false
}

// Written takes away the marks of blocks that a host has written.
func (u *Uncorrectable) Written(slba uint64, n uint32) {
	for i := range uint64(n) {
		delete(u.marked, slba+i)
	}
}

// Resize takes away the marks of blocks that there are not any more.
func (u *Uncorrectable) Resize(blocks uint64) {
	for b := range u.marked {
		if b >= blocks {
			delete(u.marked, b)
		}
	}
}

// Lose is the end of storage that is memory.
func (u *Uncorrectable) Lose() { clear(u.marked) }
