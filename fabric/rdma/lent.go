package rdma

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/mem"
)

// Memory that the handler lends is registered by chunk, when it is first asked for: registering all
// of a sparse namespace would populate it. The first requests of a chunk go through the arena,
// while an ordinary goroutine registers it; later ones find its key. All groups on a device share
// the table. A chunk stays registered until its region is unmapped or the device goes; both happen
// when no work request can use it any more, because every loan has been returned or every queue
// pair destroyed.

// lentTable is the registrations of lent memory with one device.
type lentTable struct {
	d   *device
	log interface{ Warn(msg string, args ...any) }
	// most is how many chunks may be registered.
	most int
	// files says that it has been reported that those are copied.
	files atomic.Bool

	// regions is read by reactors. The map is never changed, only replaced, under mu.
	regions atomic.Pointer[map[mem.RegionID]*lentRegion]

	mu      sync.Mutex // for moments
	wanted  []lentChunk
	working bool // a goroutine takes care of wanted
	closed  bool

	// making is held while something is registered or given back; never by a reactor. It guards
	// what follows.
	making sync.Mutex
	count  int  // chunks
	full   bool // the limit has been reported
}

// lentRegion is what a device knows of one region.
type lentRegion struct {
	region *mem.Region
	base   uint64
	cancel func()
	// keys by chunk: 0 unknown, keyWanted, or keyKnown and the key.
	keys []atomic.Uint64
	mrs  map[int]verbs.MR // under making
}

type lentChunk struct {
	r *lentRegion
	n int
}

const (
	keyWanted = 1 << 32
	keyKnown  = 1 << 33
)

func newLentTable(d *device, log interface{ Warn(msg string, args ...any) }) *lentTable {
	t := &lentTable{d: d, log: log, most: lentLimit(&d.attr)}
	t.regions.Store(&map[mem.RegionID]*lentRegion{})
	return t
}

// lentLimit leaves half of the device's regions, and of the memory that may be locked, to queues
// and arenas: without them there is no connection, without loans there is only a copy.
func lentLimit(attr *verbs.DeviceAttr) int {
	most := 1 << 30
	if attr.MaxMR > 0 {
		most = attr.MaxMR / 2
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err == nil &&
		limit.Cur != unix.RLIM_INFINITY && !mayLock() {
		most = min(most, int(limit.Cur/2/mem.ChunkSize))
	}
	return most
}

// mayLock says whether the memlock limit does not apply (CAP_IPC_LOCK, see capabilities(7)).
func mayLock() bool {
	var data [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
}

// key is the local key of a segment. If there is none yet it is asked for. Reactor only.
func (t *lentTable) key(s *mem.Segment) (uint32, bool) {
	if s.File {
		// The file system may give blocks to other files. So the kernel lets no device keep them
		// (FOLL_LONGTERM, see fsdax in check_vma_flags of mm/gup.c).
		if !t.files.Load() && t.files.CompareAndSwap(false, true) {
			t.log.Warn("RDMA: what is read of mapped files is copied: devices cannot register the memory of a file system",
				"device", t.d.attr.Name)
		}
		return 0, false
	}
	r := (*t.regions.Load())[s.Region]
	if r == nil {
		if r = t.add(s.Region); r == nil {
			return 0, false
		}
	}
	off := mem.Addr(s.B) - r.base
	if off%mem.ChunkSize+uint64(len(s.B)) > mem.ChunkSize {
		return 0, false // of two registrations
	}
	n := int(off / mem.ChunkSize)
	k := &r.keys[n]
	v := k.Load()
	if v == 0 && k.CompareAndSwap(0, keyWanted) {
		t.want(lentChunk{r, n})
	}
	return uint32(v), v&keyKnown != 0
}

// add makes a region known, nil if that cannot be.
func (t *lentTable) add(id mem.RegionID) *lentRegion {
	region := mem.Find(id)
	if region == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.regions.Load()
	if r := old[id]; r != nil || t.closed {
		return r
	}
	b := region.Bytes()
	r := &lentRegion{region: region, base: mem.Addr(b), mrs: make(map[int]verbs.MR)}
	r.keys = make([]atomic.Uint64, (len(b)+mem.ChunkSize-1)/mem.ChunkSize)
	cancel, ok := region.BeforeUnmap(func() error { return t.forget(r) })
	if !ok {
		return nil
	}
	r.cancel = cancel
	next := maps.Clone(old)
	next[id] = r
	t.regions.Store(&next)
	return r
}

// want has a chunk registered.
func (t *lentTable) want(c lentChunk) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted = append(t.wanted, c)
	if !t.working && !t.closed {
		t.working = true
		go t.work()
	}
}

// work registers what is wanted until nothing is. Not on a reactor.
func (t *lentTable) work() {
	for {
		t.mu.Lock()
		wanted := t.wanted
		t.wanted = nil
		t.working = len(wanted) > 0
		t.mu.Unlock()
		if len(wanted) == 0 {
			return
		}
		for _, c := range wanted {
			t.register(c)
		}
	}
}

// register registers a chunk and makes its key known. After a failure the chunk is not asked for
// again.
func (t *lentTable) register(c lentChunk) {
	t.making.Lock()
	defer t.making.Unlock()
	if (*t.regions.Load())[c.r.region.ID()] != c.r || t.full || !c.r.region.Pin(c.n) {
		return
	}
	b := c.r.region.Bytes()[c.n*mem.ChunkSize:]
	b = b[:min(len(b), mem.ChunkSize)]
	err := fmt.Errorf("%d MiB are registered, the limit", t.count*mem.ChunkSize>>20)
	var mr verbs.MR
	if t.count < t.most {
		// READs of ours write there. And it has the kernel give the pages a place of their own for
		// good.
		mr, err = t.d.pd.RegMR(b, verbs.AccessLocalWrite)
	}
	if err != nil {
		c.r.region.Unpin(c.n)
		t.full = true
		t.log.Warn("RDMA: not all memory of namespaces can be registered, the rest is copied (see the memlock limit)",
			"device", t.d.attr.Name, "error", err)
		return
	}
	t.count++
	c.r.mrs[c.n] = mr
	c.r.keys[c.n].Store(keyKnown | uint64(mr.LKey()))
}

// forget gives back what is registered of a region that is being unmapped.
func (t *lentTable) forget(r *lentRegion) error {
	t.making.Lock()
	defer t.making.Unlock()
	t.mu.Lock()
	next := maps.Clone(*t.regions.Load())
	delete(next, r.region.ID())
	t.regions.Store(&next)
	t.mu.Unlock()
	return t.release(r)
}

// release gives back the registrations of a region. making is held.
func (t *lentTable) release(r *lentRegion) error {
	var errs []error
	for n, mr := range r.mrs {
		// a device that is gone has nothing
		if err := mr.Dereg(); err != nil && !t.d.removed.Load() {
			errs = append(errs, fmt.Errorf("free lent memory of %s: %w", t.d.attr.Name, err))
			continue
		}
		delete(r.mrs, n)
		r.region.Unpin(n)
		t.count--
		t.full = false
	}
	return errors.Join(errs...)
}

// close gives everything back. No queue uses the device any more.
func (t *lentTable) close() error {
	t.making.Lock()
	defer t.making.Unlock()
	t.mu.Lock()
	t.closed = true
	regions := *t.regions.Swap(&map[mem.RegionID]*lentRegion{})
	t.mu.Unlock()
	var errs []error
	for _, r := range regions {
		r.cancel()
		errs = append(errs, t.release(r))
	}
	return errors.Join(errs...)
}

// CanReceiveInto implements fabric.Queue. On iWARP data from the host goes to a staging area: what
// receives it is open to remote writes.
func (q *queue) CanReceiveInto(segs []mem.Segment) bool {
	return q.p.staging == nil && q.CanSendFrom(segs)
}

// CanSendFrom implements fabric.Queue: every segment lies in memory that the device knows.
func (q *queue) CanSendFrom(segs []mem.Segment) bool {
	ok := true
	for i := range segs {
		if _, known := q.p.key(&segs[i]); !known {
			ok = false // the others are asked for, too
		}
	}
	return ok
}
