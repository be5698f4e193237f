package mem

import "sync/atomic"

// Copy copies payload, as the built-in copy does. All copies of commands' data in this process are
// by Copy, so that tests can check zero-copy paths. System calls and devices do not count.
func Copy(dst, src []byte) int {
	n := copy(dst, src)
	if invariants {
		copied.Add(int64(n))
	}
	return n
}

// CopySegments copies src to dst by Copy, up to the length of the shorter one.
func CopySegments(dst, src []Segment) {
	to := NewCursor(dst, 0)
	for i := range src {
		if to.CopyFrom(src[i].B) < len(src[i].B) {
			return
		}
	}
}

var copied atomic.Int64

// Copied returns the number of bytes copied by Copy so far. ok reports whether they are counted,
// which needs the build tag invariants.
func Copied() (n int64, ok bool) { return copied.Load(), invariants }
