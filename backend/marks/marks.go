package marks

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
)

// Max is the maximum number of bytes of a namespace that can be marked. More fails with
// backend.ErrNoSpace. Writes need no room, even if they divide marked ranges.
const Max = 2 << 20

// Kept is the marked blocks of a namespace in a Store. It is immutable.
type Kept struct {
	// Identity is that of the storage (backend.Info). Marks belong to one storage only.
	Identity string
	// Ranges are ascending and do not touch.
	Ranges []backend.Range
}

// Store keeps marked blocks across restarts.
type Store interface {
	// Load returns the stored marks of a namespace, nil if there are none. It does not block.
	Load(nqn string, nsid uint32) *Kept
	// Save replaces the stored marks of a namespace; nil removes them. If it returns nil, k is
	// durable. A crash before that leaves the old or the new marks. One goroutine at a time calls
	// it for a namespace. It may block.
	Save(nqn string, nsid uint32, k *Kept) error
}

// Validate returns an error if marks read from a store are not valid.
func (u *Kept) Validate() error {
	end, n := int64(-1), int64(0)
	for _, r := range u.Ranges {
		if r.Off <= end || r.End <= r.Off || (r.Off|r.End)%backend.MinBlockSize != 0 {
			return fmt.Errorf("range %d to %d: ranges must be ascending, separate, and of whole "+
				"blocks", r.Off, r.End)
		}
		end, n = r.End, n+r.End-r.Off
	}
	if n > Max {
		return fmt.Errorf("%d bytes are marked: at most %d are possible", n, Max)
	}
	return nil
}

// With returns the marks of u and o, nil for none, of the same storage. There may be too many.
func (u *Kept) With(o *Kept) *Kept {
	list := slices.Concat(u.Ranges, cmp.Or(o, &Kept{}).Ranges)
	slices.SortFunc(list, func(a, b backend.Range) int { return cmp.Compare(a.Off, b.Off) })
	all := &Kept{Identity: u.Identity}
	for _, r := range list {
		all.Ranges = join(all.Ranges, r)
	}
	return all
}

// join adds a range to ascending ones that do not touch. None of these begins after it.
func join(list []backend.Range, r backend.Range) []backend.Range {
	if n := len(list); n > 0 && list[n-1].End >= r.Off {
		list[n-1].End = max(list[n-1].End, r.End)
		return list
	}
	return append(list, r)
}

// mark is a marked range. Its id is larger than the ids of all marks before it.
type mark struct {
	backend.Range
	id uint64
}

// set is the marked ranges: ascending, not overlapping, and immutable.
type set []mark

// span returns the marks [lo, hi) that overlap [off, end).
func (m set) span(off, end int64) (lo, hi int) {
	return sort.Search(len(m), func(i int) bool { return m[i].End > off }),
		sort.Search(len(m), func(i int) bool { return m[i].Off >= end })
}

// find returns the first marked byte in [off, end) and the newest id there.
func (m set) find(off, end int64) (at int64, newest uint64, found bool) {
	lo, hi := m.span(off, end)
	if lo >= hi {
		return 0, 0, false
	}
	for _, o := range m[lo:hi] {
		newest = max(newest, o.id)
	}
	return max(m[lo].Off, off), newest, true
}

func (m set) size() (n int64) {
	for _, o := range m {
		n += o.End - o.Off
	}
	return n
}

// ranges returns the marked ranges. They do not touch.
func (m set) ranges() (list []backend.Range) {
	for _, o := range m {
		list = join(list, o.Range)
	}
	return list
}

func (m set) with(o mark) set {
	m = m.without(mark{o.Range, math.MaxUint64})
	i, _ := m.span(o.Off, o.End)
	return slices.Concat(m[:i], set{o}, m[i:])
}

// without removes the marks of a range with at most its id.
func (m set) without(r mark) set {
	lo, hi := m.span(r.Off, r.End)
	var rest set
	for _, o := range m[lo:max(lo, hi)] {
		if o.id > r.id {
			rest = append(rest, o)
			continue
		}
		if o.Off < r.Off {
			rest = append(rest, mark{backend.Range{Off: o.Off, End: r.Off}, o.id})
		}
		if o.End > r.End {
			rest = append(rest, mark{backend.Range{Off: r.End, End: o.End}, o.id})
		}
	}
	return slices.Concat(m[:lo], rest, m[max(lo, hi):])
}

// Marks is the marks of a namespace. It exists while the namespace is removed, too.
type Marks struct {
	store Store
	nqn   string
	nsid  uint32
	now   atomic.Pointer[set] // nil: there never were any, and channels do not check
	ids   atomic.Uint64       // the id of the newest mark

	mu        sync.Mutex
	dev       backend.Device // that the marks belong to
	info      backend.Info   // of dev
	queue     []*change
	working   bool
	stored    bool // the store may have some
	forgotten bool // nothing is stored from now on
}

// change adds a mark, or removes marks with at most its id. A mark gets its id with the change.
type change struct {
	mark
	add  bool
	from *Kept // not nil: from the store, in place of all others
	err  error
	done func(error) // called once, by the storing goroutine
}

var everything = mark{backend.Range{End: math.MaxInt64}, math.MaxUint64}

// New makes the marks of a namespace, kept in store. If store is nil nothing can be marked.
func New(store Store, nqn string, nsid uint32) *Marks {
	return &Marks{store: store, nqn: nqn, nsid: nsid}
}

// Forget forgets the marks of a removed namespace, also stored ones, unless it fails. It blocks.
func (u *Marks) Forget() error {
	if !u.Begun() && (u.store == nil || u.store.Load(u.nqn, u.nsid) == nil) {
		return nil
	}
	done := make(chan error)
	u.Begin()
	u.mu.Lock()
	u.stored = true
	u.mu.Unlock()
	u.keep(&change{mark: everything, done: func(err error) {
		u.mu.Lock()
		u.forgotten = true
		u.mu.Unlock()
		done <- err
	}})
	return <-done
}

// Attach sets the storage of the namespace. Marks of that storage, also stored ones, are kept.
func (u *Marks) Attach(dev backend.Device) {
	if u.store == nil {
		return
	}
	info := dev.Info()
	u.mu.Lock()
	defer u.mu.Unlock()
	kept := u.store.Load(u.nqn, u.nsid)
	same := u.dev != nil && u.info.Identity == info.Identity && !u.info.Volatile &&
		!info.Volatile || dev == u.dev
	u.dev, u.info, u.stored = dev, info, u.stored || kept != nil
	switch {
	case same:
	case kept != nil && kept.Identity == info.Identity && !info.Volatile:
		// The stored marks would come back with a restart, so writes have to remove them. They may
		// be outdated, if a change of the storage could not be stored.
		stored := make(set, len(kept.Ranges))
		for i, r := range kept.Ranges {
			stored[i].Range = r
		}
		u.now.Store(&stored)
	case kept != nil || u.now.Load() != nil:
		u.now.Store(new(set))
		u.keepLocked(&change{done: func(error) {}}) // the stored marks have another identity
	}
}

// Restore adopts the marks that the store has from another target, which does not use it any more.
// It returns when earlier changes have ended.
func (u *Marks) Restore(k *Kept) {
	done := make(chan struct{})
	u.keep(&change{from: k, done: func(error) { close(done) }})
	<-done
}

func (u *Marks) restore(k *Kept) {
	u.mu.Lock()
	defer u.mu.Unlock()
	id, now := u.ids.Add(1), make(set, len(k.Ranges)) // writes that have begun do not remove them
	for i, r := range k.Ranges {
		now[i] = mark{r, id}
	}
	if u.stored = true; len(now) > 0 || u.Begun() {
		u.now.Store(&now)
	}
}

// Cut removes the marks beyond the end of storage that has shrunk, because such blocks may come
// back. It does not block. Until the change is stored the marks stay, so writes to blocks that have
// come back store their removal.
func (u *Marks) Cut(size int64) {
	now := u.now.Load()
	if now == nil {
		return
	}
	if _, _, found := now.find(size, math.MaxInt64); found {
		beyond := everything
		beyond.Off = size
		u.keep(&change{mark: beyond, done: func(error) {}})
	}
}

// Begun reports whether channels have to check for marks, through Wrap.
func (u *Marks) Begun() bool { return u.now.Load() != nil }

// Begin makes channels check for marks.
func (u *Marks) Begin() { u.now.CompareAndSwap(nil, new(set)) }

// apply makes changes in order to next. grown is the union of old and added marks.
func (m set) apply(changes []*change) (grown, next set) {
	grown, next = m, m
	for _, c := range changes {
		c.err = nil
		if !c.add {
			next = next.without(c.mark)
		} else if more := grown.with(c.mark); more.size() <= Max {
			grown, next = more, next.with(c.mark)
		} else {
			c.err = errTooMuchMarked
		}
	}
	return grown, next
}

// errTooMuchMarked is Capacity Exceeded (Base section 4.2.3.1, 81h): the closest status.
var errTooMuchMarked = fmt.Errorf("at most %d bytes of a namespace can be marked uncorrectable: %w",
	Max, backend.ErrNoSpace)

// number returns the marks, and gives new ones larger ids than all of them have.
func (u *Marks) number(changes ...*change) *set {
	now := u.now.Load()
	for _, c := range changes {
		if c.add {
			c.id = u.ids.Add(1)
		}
	}
	return now
}

// change makes a change that is not stored.
func (u *Marks) change(c *change) error {
	for {
		before := u.number(c)
		if _, next := before.apply([]*change{c}); u.now.CompareAndSwap(before, &next) {
			return c.err
		}
	}
}

// keep makes a change after it is stored. It does not block.
func (u *Marks) keep(c *change) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.keepLocked(c)
}

func (u *Marks) keepLocked(c *change) {
	u.queue = append(u.queue, c)
	if !u.working {
		u.working = true
		go u.work()
	}
}

// work stores changes until none are left.
func (u *Marks) work() {
	for {
		u.mu.Lock()
		changes := u.queue
		for i, c := range changes { // one that restores is alone
			if c.from != nil {
				changes = changes[:max(i, 1)]
				break
			}
		}
		u.queue, u.working = u.queue[len(changes):], len(changes) > 0
		u.mu.Unlock()
		if len(changes) == 0 {
			return
		}
		err := u.commit(changes)
		for _, c := range changes {
			c.done(cmp.Or(c.err, err))
		}
	}
}

// commit stores changes and makes them visible. If storing fails, the store has the marks from
// before or after the change. So a block is marked if it is in either; a write to it stores the
// removal.
func (u *Marks) commit(changes []*change) error {
	if from := changes[0].from; from != nil {
		u.restore(from)
		return nil
	}
	for {
		before := u.number(changes...)
		grown, next := before.apply(changes)
		u.mu.Lock()                 // briefly: reactors wait for it
		if u.now.Load() != before { // by a change of the storage, for instance
			u.mu.Unlock()
			continue
		}
		var kept *Kept
		if len(next) > 0 && !u.info.Volatile {
			kept = &Kept{u.info.Identity, next.ranges()}
		}
		u.stored = u.stored || kept != nil
		stored := u.stored && !u.forgotten
		u.mu.Unlock()
		var err error
		if stored {
			err = u.store.Save(u.nqn, u.nsid, kept)
		}
		if err != nil {
			err = fmt.Errorf("the marks of uncorrectable blocks cannot be stored: %w", err)
			next = grown
		}
		if u.now.CompareAndSwap(before, &next) {
			return err
		}
	}
}
