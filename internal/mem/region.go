package mem

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Region is anonymous memory outside the Go heap: page aligned, zeroed, populated when accessed,
// and not inherited by child processes, so that a fork never moves a page of a device.
//
// The caller that mapped it unmaps it. Any goroutine may read and write its bytes.
type Region struct {
	id      RegionID
	purpose string
	b       []byte
	pins    pins
	kept    atomic.Bool
	node    int32 // the preferred NUMA node plus one, 0 if there is none
}

var nextID atomic.Int32

// Map maps size bytes, rounded up to whole pages. purpose is for errors and Usage.
func Map(purpose string, size int) (*Region, error) { return mapRegion(purpose, size, false) }

// mapRegion is Map, with huge pages if requested and possible; see mapPages.
func mapRegion(purpose string, size int, huge bool) (*Region, error) {
	page := unix.Getpagesize()
	if size <= 0 || size > (1<<62) {
		return nil, fmt.Errorf("map memory for %s: size %d bytes: must be positive", purpose, size)
	}
	size = (size + page - 1) &^ (page - 1)
	b, err := mapPages(size, huge)
	if err != nil {
		return nil, fmt.Errorf(
			"map %d bytes for %s: %w (see ulimit -v and the memory limit of the service)", size,
			purpose, err)
	}
	return newRegion(purpose, b)
}

// newRegion makes a region of mapped memory.
func newRegion(purpose string, b []byte) (*Region, error) {
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil {
		_ = unix.Munmap(b)
		return nil, fmt.Errorf("map %d bytes for %s: madvise(MADV_DONTFORK): %w", len(b), purpose,
			err)
	}
	r := &Region{id: RegionID(nextID.Add(1)), purpose: purpose, b: b}
	live.Store(r.id, r)
	return r, nil
}

// ID returns the number of the region. Any goroutine may call it.
func (r *Region) ID() RegionID { return r.id }

// Bytes returns all of the memory, nil after Unmap.
func (r *Region) Bytes() []byte { return r.b }

// Discard gives the pages of Bytes()[off:off+n] back to the kernel; off and n are multiples of the
// page size. They read as zeroes afterwards. Nothing may write there meanwhile. If a device has
// part of the range registered (Pin), Discard does nothing and returns ErrPinned, because the
// device would keep the old pages.
func (r *Region) Discard(off, n int) error {
	r.pins.mu.Lock()
	defer r.pins.mu.Unlock()
	for c := off / ChunkSize; c*ChunkSize < off+n; c++ {
		if r.pins.counts[c] > 0 {
			return ErrPinned
		}
	}
	if err := unix.Madvise(r.b[off:off+n], unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("free %d bytes of %s: madvise(MADV_DONTNEED): %w", n, r.purpose, err)
	}
	return nil
}

// Collapse asks the kernel to move the pages of Bytes()[off:off+n], all populated, into huge ones
// (madvise(2), MADV_COLLAPSE, Linux 6.1). The memory may be used meanwhile. If a device has part of
// the region registered (Pin), it returns ErrPinned: such pages cannot be moved, and trying would
// delay all changes of mappings while a device registers more. EINVAL means that the kernel does
// not support it; after other errors there were no huge pages.
func (r *Region) Collapse(off, n int) error {
	r.pins.mu.Lock()
	pinned := len(r.pins.counts) > 0
	r.pins.mu.Unlock()
	if pinned {
		return ErrPinned
	}
	return unix.Madvise(r.b[off:off+n], unix.MADV_COLLAPSE)
}

// Keep(true) makes Unmap do nothing. The memory then stays mapped until the process ends, because a
// device that cannot be stopped may use it. Any goroutine may call it.
func (r *Region) Keep(on bool) { r.kept.Store(on) }

// Unmap unmaps the memory, which no goroutine and no device uses any more, except from BeforeUnmap.
// It may be repeated after an error, and does nothing after success.
func (r *Region) Unmap() error {
	if r.b == nil || r.kept.Load() {
		return nil
	}
	if err := r.unpin(); err != nil {
		return fmt.Errorf("unmap memory of %s: %w", r.purpose, err)
	}
	if err := unix.Munmap(r.b); err != nil {
		return fmt.Errorf("unmap %d bytes of %s: %w", len(r.b), r.purpose, err)
	}
	r.b = nil
	live.Delete(r.id)
	return nil
}

// Addr returns the address of b[0], 0 if b has no memory. It is stable for memory of regions only:
// the Go heap must not be given to devices.
func Addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Usage returns the number of mapped regions by purpose, for tests. Any goroutine may call it.
func Usage() map[string]int {
	regions := map[string]int{}
	live.Range(func(_, r any) bool {
		regions[r.(*Region).purpose]++
		return true
	})
	return regions
}

// View returns the memory of b as values of T, which holds no pointers. It is for sparse tables. b
// lies in a region at a multiple of the size of T; a remainder at its end is left out.
func View[T any](b []byte) []T {
	var v T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))/unsafe.Sizeof(v))
}
