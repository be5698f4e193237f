package mem

import "unsafe"

// View is the memory of b as values of T, which holds no pointers: for tables that are as sparse as
// what they describe. b lies in a region at a multiple of the size of T; what is left over at its
// end is not in the view.
func View[T any](b []byte) []T {
	var v T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))/unsafe.Sizeof(v))
}
