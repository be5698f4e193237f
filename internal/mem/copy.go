package mem

import "sync/atomic"

// Copy copies payload as the built-in copy does. Everything that moves the data of a command from
// one place of this process to another does it here, so that tests can hold the zero-copy path to
// zero; system calls and devices do not count.
func Copy(dst, src []byte) int {
	n := copy(dst, src)
	if invariants {
		copied.Add(int64(n))
	}
	return n
}

// CopySegments copies what is in src to dst by Copy, as much as both have.
func CopySegments(dst, src []Segment) {
	to := NewCursor(dst, 0)
	for i := range src {
		if to.CopyFrom(src[i].B) < len(src[i].B) {
			return
		}
	}
}

var copied atomic.Int64

// Copied is the number of bytes that Copy has copied so far. ok says that they are counted: with
// the build tag invariants.
func Copied() (n int64, ok bool) { return copied.Load(), invariants }
