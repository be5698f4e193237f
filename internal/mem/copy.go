package mem

import "sync/atomic"

// Copy copies payload as the built-in copy does. Everything that copies the data of a command
// within this process calls it, so that tests can check that zero-copy paths copy nothing. System
// calls and devices do not count.
func Copy(dst, src []byte) int {
	n := copy(dst, src)
	if invariants {
		copied.Add(int64(n))
	}
	return n
}

// CopySegments copies src to dst by Copy, as many bytes as both have.
func CopySegments(dst, src []Segment) {
	to := NewCursor(dst, 0)
	for i := range src {
		if to.CopyFrom(src[i].B) < len(src[i].B) {
			return
		}
	}
}

var copied atomic.Int64

// Copied returns the number of bytes that Copy has copied so far. ok says that they are counted,
// which the build tag invariants enables.
func Copied() (n int64, ok bool) { return copied.Load(), invariants }
