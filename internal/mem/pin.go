package mem

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// ChunkSize is the unit in which memory of namespaces is registered with devices, in bytes: each
// segment of a zero-copy read or write lies within one chunk, counted from the start of its region.
const ChunkSize = 2 << 20

// ErrPinned is the error for pages that cannot be freed because a device has them registered.
var ErrPinned = errors.New("a device has the memory registered")

// live maps the RegionID of each mapped region to it.
var live sync.Map

// Find returns the region with this ID, nil if it is no longer mapped. Any goroutine may call it.
func Find(id RegionID) *Region {
	if r, ok := live.Load(id); ok {
		return r.(*Region)
	}
	return nil
}

// pins are the registrations of a region with devices.
type pins struct {
	mu     sync.Mutex
	ended  bool        // the region is being unmapped
	counts map[int]int // by chunk
	unmaps []*func() error
}

// Pin keeps the pages of a chunk in place for a device until Unpin. It returns false if the region
// is being unmapped. Any goroutine may call it.
func (r *Region) Pin(chunk int) bool {
	r.pins.mu.Lock()
	defer r.pins.mu.Unlock()
	if r.pins.ended {
		return false
	}
	if r.pins.counts == nil {
		r.pins.counts = make(map[int]int)
	}
	r.pins.counts[chunk]++
	return true
}

// Unpin undoes one Pin.
func (r *Region) Unpin(chunk int) {
	r.pins.mu.Lock()
	defer r.pins.mu.Unlock()
	if r.pins.counts[chunk]--; r.pins.counts[chunk] == 0 {
		delete(r.pins.counts, chunk)
	}
}

// BeforeUnmap makes Unmap call fn first, on its goroutine, to deregister the memory from a device.
// An error of fn keeps the memory mapped. ok is false if the region is already being unmapped.
// cancel undoes BeforeUnmap, but does not stop a call that has begun. Any goroutine may call both.
func (r *Region) BeforeUnmap(fn func() error) (cancel func(), ok bool) {
	r.pins.mu.Lock()
	defer r.pins.mu.Unlock()
	if r.pins.ended {
		return nil, false
	}
	p := &fn
	r.pins.unmaps = append(r.pins.unmaps, p)
	return func() {
		r.pins.mu.Lock()
		defer r.pins.mu.Unlock()
		r.pins.unmaps = slices.DeleteFunc(r.pins.unmaps,
			func(o *func() error) bool { return o == p })
	}, true
}

// unpin refuses further pins and deregisters the memory from all devices.
func (r *Region) unpin() error {
	r.pins.mu.Lock()
	r.pins.ended = true
	unmaps := slices.Clone(r.pins.unmaps)
	r.pins.mu.Unlock()
	var errs []error
	for _, fn := range unmaps {
		errs = append(errs, (*fn)())
	}
	r.pins.mu.Lock()
	defer r.pins.mu.Unlock()
	if n := len(r.pins.counts); n > 0 {
		errs = append(errs, fmt.Errorf("%d chunks of %s: %w", n, r.purpose, ErrPinned))
	}
	return errors.Join(errs...)
}
