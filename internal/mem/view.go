package mem

import "unsafe"

// View returns the memory of b as values of T, which holds no pointers. It is for sparse tables. b
// lies in a region at a multiple of the size of T; a remainder at its end is left out.
func View[T any](b []byte) []T {
	var v T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))/unsafe.Sizeof(v))
}
