package mem

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// ChunkSize is the unit in which memory that is lent gets registered with devices, in bytes: a lent
// segment lies within one chunk, counted from the start of its region.
const ChunkSize = 2 << 20

// ErrPinned says that pages cannot be given back, because a device has them registered.
var ErrPinned = errors.New("a device has the memory registered")

// live maps the RegionID of each mapped region to it.
var live sync.Map

// Find returns the region with this ID, nil if it is not mapped any more. Any goroutine may call
// it.
func Find(id RegionID) *Region {
	if r, ok := live.Load(id); ok {
		return r.(*Region)
	}
	return nil
}

// pins is what the outside world has of a region.
type pins struct {
	mu     sync.Mutex
	gone   bool
	counts map[int]int // by chunk
	leave  []*func() error
}

// Pin keeps Discard away from the chunk with this number, so that a device can have it registered;
// Unpin ends that. It returns false if the region is being unmapped. Any goroutine may call it.
func (r *Region) Pin(chunk int) bool {
	r.pins.mu.Lock()
	defer r.pins.mu.Unlock()
	if r.pins.gone {
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

// BeforeUnmap has Unmap call fn first, on its goroutine, so that devices let go of the memory; an
// error keeps it mapped. It returns false if the region is being unmapped. cancel undoes it; a call
// that has begun goes on. Any goroutine may call both.
func (r *Region) BeforeUnmap(fn func() error) (cancel func(), ok bool) {
	r.pins.mu.Lock()
	defer r.pins.mu.Unlock()
	if r.pins.gone {
		return nil, false
	}
	p := &fn
	r.pins.leave = append(r.pins.leave, p)
	return func() {
		r.pins.mu.Lock()
		defer r.pins.mu.Unlock()
		r.pins.leave = slices.DeleteFunc(r.pins.leave, func(o *func() error) bool { return o == p })
	}, true
}

// release lets no pins be made any more and has everybody let go of the memory.
func (r *Region) release() error {
	r.pins.mu.Lock()
	r.pins.gone = true
	leave := slices.Clone(r.pins.leave)
	r.pins.mu.Unlock()
	var errs []error
	for _, fn := range leave {
		errs = append(errs, (*fn)())
	}
	r.pins.mu.Lock()
	defer r.pins.mu.Unlock()
	if n := len(r.pins.counts); n > 0 {
		errs = append(errs, fmt.Errorf("%d chunks of %s: %w", n, r.purpose.name, ErrPinned))
	}
	return errors.Join(errs...)
}
