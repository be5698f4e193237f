//go:build invariants

package mem

// invariants reports whether the costly checks are built in (build tag invariants).
const invariants = true

// poison overwrites freed memory, so that a use after the free shows.
func (a *Arena) poison(p, pages int32) {
	b := a.base[int(p)<<pageShift:][:int(pages)<<pageShift]
	b[0] = 0xDB
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}
