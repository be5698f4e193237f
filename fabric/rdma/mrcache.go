package rdma

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// mrCache has the registrations of namespaces' memory with one device, for zero copy. Memory is
// registered by chunk, when it is first looked up: registering all of a sparse namespace would
// populate it. The first requests of a chunk are copied, while an ordinary goroutine registers it;
// later ones find its key. All groups on a device share the cache. A chunk stays registered until
// its region is unmapped or the device released. Both happen only when no work request can use it,
// because every zero copy has ended or every queue pair was destroyed.
type mrCache struct {
	d   *device
	log interface{ Warn(msg string, args ...any) }
	// limit is the maximum number of registered chunks.
	limit int

	// regions is read by reactors. The map is never changed, only replaced, under mu.
	regions atomic.Pointer[map[mem.RegionID]*cachedRegion]

	mu      sync.Mutex // held briefly
	wanted  []wantedChunk
	working bool // a goroutine registers the wanted chunks
	closed  bool

	// regMu is held to register or deregister, never by a reactor. It guards the fields below.
	regMu sync.Mutex
	count int  // chunks
	full  bool // the limit was reached and logged
}

// cachedRegion is the registrations of one region with a device.
type cachedRegion struct {
	region *mem.Region
	base   uint64
	cancel func()
	// keys has the state of each chunk: 0 (unknown), keyWanted, or keyValid and the key.
	keys []atomic.Uint64
	mrs  map[int]verbs.MR // by chunk, under regMu
}

type wantedChunk struct {
	r     *cachedRegion
	chunk int
}

const (
	keyWanted = 1 << 32
	keyValid  = 1 << 33
)

func newMRCache(d *device, log interface{ Warn(msg string, args ...any) }) *mrCache {
	c := &mrCache{d: d, log: log, limit: mrLimit(&d.attr)}
	c.regions.Store(&map[mem.RegionID]*cachedRegion{})
	return c
}

// mrLimit leaves half of the device's memory regions, and of the memory that may be locked, to
// queues and data memory: connections need these, while zero copy can be replaced by a copy.
func mrLimit(attr *verbs.DeviceAttr) int {
	most := 1 << 30
	if attr.MaxMR > 0 {
		most = attr.MaxMR / 2
	}
	if limit, limited := sys.MemlockLimit(); limited && !attr.Unlocked {
		most = min(most, int(limit/2/mem.ChunkSize))
	}
	return most
}

// lookup returns the local key of a segment, or has its chunk registered. Reactor only.
func (c *mrCache) lookup(s *mem.Segment) (key uint32, ok bool) {
	r := (*c.regions.Load())[s.Region]
	if r == nil {
		if r = c.add(s.Region); r == nil {
			return 0, false
		}
	}
	off := mem.Addr(s.B) - r.base
	if off%mem.ChunkSize+uint64(len(s.B)) > mem.ChunkSize {
		return 0, false // of two registrations
	}
	chunk := int(off / mem.ChunkSize)
	k := &r.keys[chunk]
	v := k.Load()
	if v == 0 && k.CompareAndSwap(0, keyWanted) {
		c.want(wantedChunk{r, chunk})
	}
	return uint32(v), v&keyValid != 0
}

// add adds a region; it returns nil if the region is being unmapped.
func (c *mrCache) add(id mem.RegionID) *cachedRegion {
	region := mem.Find(id)
	if region == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old := *c.regions.Load()
	if r := old[id]; r != nil || c.closed {
		return r
	}
	b := region.Bytes()
	r := &cachedRegion{
		region: region, base: mem.Addr(b), mrs: make(map[int]verbs.MR),
		keys: make([]atomic.Uint64, (len(b)+mem.ChunkSize-1)/mem.ChunkSize),
	}
	cancel, ok := region.BeforeUnmap(func() error { return c.forget(r) })
	if !ok {
		return nil
	}
	r.cancel = cancel
	next := maps.Clone(old)
	next[id] = r
	c.regions.Store(&next)
	return r
}

// want requests the registration of a chunk.
func (c *mrCache) want(w wantedChunk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted = append(c.wanted, w)
	if !c.working && !c.closed {
		c.working = true
		go c.work()
	}
}

// work registers chunks until none is wanted. Not on a reactor.
func (c *mrCache) work() {
	for {
		c.mu.Lock()
		wanted := c.wanted
		c.wanted = nil
		c.working = len(wanted) > 0
		c.mu.Unlock()
		if len(wanted) == 0 {
			return
		}
		for _, w := range wanted {
			c.register(w.r, w.chunk)
		}
	}
}

// register registers a chunk and publishes its key. After a failure the chunk is no longer wanted.
func (c *mrCache) register(r *cachedRegion, chunk int) {
	c.regMu.Lock()
	defer c.regMu.Unlock()
	if (*c.regions.Load())[r.region.ID()] != r || c.full || !r.region.Pin(chunk) {
		return
	}
	b := r.region.Bytes()[chunk*mem.ChunkSize:]
	b = b[:min(len(b), mem.ChunkSize)]
	err := fmt.Errorf("%d MiB are registered, the limit", c.count*mem.ChunkSize>>20)
	var mr verbs.MR
	if c.count < c.limit {
		// LOCAL_WRITE is for RDMA READs, and gives the region its own pages for good.
		mr, err = c.d.registerMR(b, verbs.AccessLocalWrite)
	}
	if err != nil {
		r.region.Unpin(chunk)
		c.full = true
		c.log.Warn("RDMA: not all memory of namespaces can be registered, the rest is copied "+
			"(see the memlock limit)", "device", c.d.attr.Name, "err", err)
		return
	}
	c.count++
	r.mrs[chunk] = mr
	r.keys[chunk].Store(keyValid | uint64(mr.LKey()))
}

// forget deregisters a region that is being unmapped.
func (c *mrCache) forget(r *cachedRegion) error {
	c.regMu.Lock()
	defer c.regMu.Unlock()
	c.mu.Lock()
	next := maps.Clone(*c.regions.Load())
	delete(next, r.region.ID())
	c.regions.Store(&next)
	c.mu.Unlock()
	return c.deregister(r)
}

// deregister deregisters the chunks of a region. regMu is held.
func (c *mrCache) deregister(r *cachedRegion) error {
	var errs []error
	for chunk, mr := range r.mrs {
		if err := mr.Dereg(); err != nil && !c.d.removed.Load() { // a removed device has none
			errs = append(errs, fmt.Errorf("deregister memory with %s: %w", c.d.attr.Name, err))
			continue
		}
		delete(r.mrs, chunk)
		r.region.Unpin(chunk)
		c.count--
		c.full = false
	}
	return errors.Join(errs...)
}

// close deregisters everything. No queue uses the device any more.
func (c *mrCache) close() error {
	c.regMu.Lock()
	defer c.regMu.Unlock()
	c.mu.Lock()
	c.closed = true
	regions := *c.regions.Swap(&map[mem.RegionID]*cachedRegion{})
	c.mu.Unlock()
	var errs []error
	for _, r := range regions {
		r.cancel()
		errs = append(errs, c.deregister(r))
	}
	return errors.Join(errs...)
}
