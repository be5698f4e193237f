//go:build invariants

package mem

import "os"

// invariants reports whether the costly checks are built in (build tag invariants).
const invariants = true

// measuring: a reactor measures its steps, so freed memory stays as it is.
var measuring = os.Getenv("NVMF_TURNS") != ""

func (a *Arena) poison(p, pages int32) {
	Poison(a.base[int(p)<<pageShift:][:int(pages)<<pageShift])
}

// Poison overwrites freed memory, so that a use after the free shows.
func Poison(b []byte) {
	if measuring {
		return
	}
	b[0] = 0xDB
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}
