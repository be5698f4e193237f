//go:build invariants

package mem

// invariants says whether the costly checks are built in (build tag invariants).
const invariants = true

// poison overwrites freed memory, so that a use after the free shows.
func (a *Arena) poison(p, pages int32) {
	b := a.base[int(p)<<pageShift:][:int(pages)<<pageShift]
	for i := range b {
		b[i] = 0xDB
	}
}
