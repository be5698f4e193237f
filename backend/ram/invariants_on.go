//go:build invariants

package ram

// poison overwrites frames that may not be used any more, so that a later use shows.
func (f *frames) poison(first, n int64) {
	b := f.memory(first, n)
	for i := range b {
		b[i] = 0xDB
	}
}
