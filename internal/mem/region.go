package mem

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
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
	purpose *purpose
	b       []byte
	charged atomic.Int64
	pins    pins
	kept    atomic.Bool
	node    int32 // the preferred NUMA node plus one, 0 if there is none
}

// PurposeUsage is the memory of one purpose.
type PurposeUsage struct {
	// Purpose is the text given to Map, Reserve or NewArena.
	Purpose string
	// Regions is the number of mappings.
	Regions int64
	// Bytes is the memory charged: a mapped region in whole, a reserved one as Charge adds it.
	Bytes int64
}

// purpose counts the memory of one purpose. Entries are made once and never removed.
type purpose struct {
	name           string
	regions, bytes atomic.Int64
}

var (
	nextID   atomic.Int32
	purposes sync.Map // string -> *purpose
)

// Map maps size bytes, rounded up to whole pages, and charges them to purpose.
func Map(purpose string, size int) (*Region, error) { return mapRegion(purpose, size, false) }

// mapRegion is Map, with huge pages if requested and possible; see mapPages.
func mapRegion(purpose string, size int, huge bool) (*Region, error) {
	r, err := reserve(purpose, size, huge)
	if err != nil {
		return nil, err
	}
	r.Charge(int64(len(r.b)))
	return r, nil
}

// Reserve maps size bytes, rounded up to whole pages, without charging them. It is for large sparse
// memory; the owner charges the bytes that it populates.
func Reserve(purposeName string, size int) (*Region, error) {
	return reserve(purposeName, size, false)
}

func reserve(purposeName string, size int, huge bool) (*Region, error) {
	page := unix.Getpagesize()
	if size <= 0 || size > (1<<62) {
		return nil, fmt.Errorf("map memory for %s: size %d bytes: must be positive", purposeName,
			size)
	}
	size = (size + page - 1) &^ (page - 1)
	b, err := mapPages(size, huge)
	if err != nil {
		return nil, fmt.Errorf(
			"map %d bytes for %s: %w (see ulimit -v and the memory limit of the service)", size,
			purposeName, err)
	}
	return newRegion(purposeName, b)
}

// newRegion makes a region of mapped memory.
func newRegion(purposeName string, b []byte) (*Region, error) {
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil {
		_ = unix.Munmap(b)
		return nil, fmt.Errorf("map %d bytes for %s: madvise(MADV_DONTFORK): %w", len(b),
			purposeName, err)
	}
	p, ok := purposes.Load(purposeName)
	if !ok {
		p, _ = purposes.LoadOrStore(purposeName, &purpose{name: purposeName})
	}
	r := &Region{id: RegionID(nextID.Add(1)), purpose: p.(*purpose), b: b}
	r.purpose.regions.Add(1)
	live.Store(r.id, r)
	return r, nil
}

// ID returns the number of the region. Any goroutine may call it.
func (r *Region) ID() RegionID { return r.id }

// Bytes returns all of the memory, nil after Unmap.
func (r *Region) Bytes() []byte { return r.b }

// Charge adds n bytes, also negative, to the usage of the purpose. Any goroutine may call it.
func (r *Region) Charge(n int64) {
	r.charged.Add(n)
	r.purpose.bytes.Add(n)
}

// Discard gives the pages of Bytes()[off:off+n] back to the kernel; off and n are multiples of the
// page size. They read as zeroes afterwards. Nothing may write there meanwhile. The charged bytes
// stay. If a device has part of the range registered (Pin), Discard does nothing and returns
// ErrPinned, because the device would keep the old pages.
func (r *Region) Discard(off, n int) error {
	r.pins.mu.Lock()
	defer r.pins.mu.Unlock()
	for c := off / ChunkSize; c*ChunkSize < off+n; c++ {
		if r.pins.counts[c] > 0 {
			return ErrPinned
		}
	}
	if err := unix.Madvise(r.b[off:off+n], unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("free %d bytes of %s: madvise(MADV_DONTNEED): %w", n, r.purpose.name, err)
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
		return fmt.Errorf("unmap memory of %s: %w", r.purpose.name, err)
	}
	if err := unix.Munmap(r.b); err != nil {
		return fmt.Errorf("unmap %d bytes of %s: %w", len(r.b), r.purpose.name, err)
	}
	r.b = nil
	live.Delete(r.id)
	r.purpose.bytes.Add(-r.charged.Swap(0))
	r.purpose.regions.Add(-1)
	return nil
}

// Addr returns the address of b[0], 0 if b has no memory. It is stable for memory of regions only:
// the Go heap must not be given to devices.
func Addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Usage returns the memory of each purpose that has any, by name. Any goroutine may call it.
func Usage() []PurposeUsage {
	var list []PurposeUsage
	purposes.Range(func(_, v any) bool {
		p := v.(*purpose)
		u := PurposeUsage{Purpose: p.name, Regions: p.regions.Load(), Bytes: p.bytes.Load()}
		if u.Regions != 0 || u.Bytes != 0 {
			list = append(list, u)
		}
		return true
	})
	slices.SortFunc(list, func(a, b PurposeUsage) int { return cmp.Compare(a.Purpose, b.Purpose) })
	return list
}
