//go:build invariants

package ram

// poison overwrites what nobody may use any more, so that a use after that shows.
func (f *frames) poison(first, n int64) {
	b := f.memory(first, n)
	for i := range b {
		b[i] = 0xDB
	}
}
