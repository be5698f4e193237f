package mem

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The placement of pages: NUMA nodes and huge pages. Neither is ever required.

const (
	mpolPreferred = 1    // MPOL_PREFERRED of linux/mempolicy.h
	maxNodes      = 1024 // of the largest kernels (CONFIG_NODES_SHIFT)
	hugeSize      = 2 << 20
)

// Prefer makes the kernel take pages of the region from a NUMA node when they are first accessed,
// or from others if that has none (mbind(2), MPOL_PREFERRED). Pages that were accessed before stay.
// The owner calls it before others use the region.
func (r *Region) Prefer(node int) error {
	if node < 0 || node >= maxNodes {
		return fmt.Errorf("memory of %s: NUMA node %d: must be 0 to %d", r.purpose, node,
			maxNodes-1)
	}
	var mask [maxNodes / 64]uint64
	mask[node/64] = 1 << (node % 64)
	// The kernel uses one bit less than it is given.
	_, _, e := syscall.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(r.b))),
		uintptr(len(r.b)), mpolPreferred,
		uintptr(unsafe.Pointer(&mask)), maxNodes+1, 0)
	if e != 0 {
		return fmt.Errorf("memory of %s: prefer NUMA node %d: mbind: %w", r.purpose, node, e)
	}
	r.node = int32(node) + 1
	return nil
}

// Follow prefers the NUMA node that another region prefers, if any.
func (r *Region) Follow(other *Region) error {
	if other.node == 0 {
		return nil
	}
	return r.Prefer(int(other.node) - 1)
}

// mapPages maps size bytes. It uses huge pages if enough are free, which the kernel then reserves,
// and ordinary pages otherwise. Huge pages are used only if size is a multiple of their size.
func mapPages(size int, huge bool) ([]byte, error) {
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_ANONYMOUS | unix.MAP_PRIVATE
	if huge && size%hugeSize == 0 {
		b, err := unix.Mmap(-1, 0, size, prot, flags|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB)
		if err == nil {
			return b, nil
		}
	}
	return unix.Mmap(-1, 0, size, prot, flags|unix.MAP_NORESERVE)
}
