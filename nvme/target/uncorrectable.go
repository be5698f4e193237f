package target

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

// Write Uncorrectable marks blocks, whose reads fail until they are written (NVM section 3.3.7).
// The marks of a namespace are remembered here, whatever its storage is. Its channels pass IOs
// through a markedChannel from the first mark on:
//
//	read                 fails if one of its blocks is marked
//	write, Write Zeroes  takes away the marks of its blocks when the device has completed it, and
//	                     completes after that; data that would outlive the mark is durable by then
//	Dataset Management   is advice, and leaves marks as they are
//
// Marks of storage that outlives the target are in the store before a command that has changed them
// completes. One goroutine for each namespace stores them, all changes at a time that there are.

// MaxUncorrectable is how much of a namespace hosts can mark, in bytes. Who marks more gets
// Capacity Exceeded; writes need no room, however they divide what is marked.
const MaxUncorrectable = 2 << 20

// wusl is WUSL, in which a controller recommends to mark no more at once: a power of two in units
// of 4 KiB (NVM section 4.1.5.4).
const wusl = 9

// Uncorrectable are the marked blocks of a namespace. It is immutable.
type Uncorrectable struct {
	// Identity is that of the storage (backend.Info): marks are no other storage's.
	Identity string
	// Ranges are ascending, and apart.
	Ranges []ByteRange
}

// UncorrectableStore keeps marked blocks through a restart.
type UncorrectableStore interface {
	// Uncorrectable returns what is kept of a namespace, nil if there is nothing.
	// It does not block.
	Uncorrectable(nqn string, nsid uint32) *Uncorrectable
	// SetUncorrectable replaces what is kept of a namespace; nil: nothing. If it returns nil, what
	// it was given is durable, after a crash before that the old or the new. It is called by one
	// goroutine at a time for a namespace, and may block.
	SetUncorrectable(nqn string, nsid uint32, u *Uncorrectable) error
}

// Validate says what is wrong with marks that were kept somewhere.
func (u *Uncorrectable) Validate() error {
	end := int64(-1)
	for _, r := range u.Ranges {
		if r.Off <= end || r.End <= r.Off || (r.Off|r.End)%backend.MinBlockSize != 0 {
			return fmt.Errorf("range %d to %d: ranges are ascending, apart, and of blocks", r.Off,
				r.End)
		}
		end = r.End
	}
	if n := marks(u.Ranges).size(); n > MaxUncorrectable {
		return fmt.Errorf("%d bytes are marked: at most %d are possible", n, MaxUncorrectable)
	}
	return nil
}

// marks are marked blocks: ascending, apart and immutable.
type marks []ByteRange

// span are the marks from index lo to before hi, which have bytes from off to before end.
func (m marks) span(off, end int64) (lo, hi int) {
	return sort.Search(len(m), func(i int) bool { return m[i].End > off }),
		sort.Search(len(m), func(i int) bool { return m[i].Off >= end })
}

// find returns where the first mark from off on begins that is before end.
func (m marks) find(off, end int64) (at int64, found bool) {
	lo, hi := m.span(off, end)
	if lo >= hi {
		return 0, false
	}
	return max(m[lo].Off, off), true
}

func (m marks) size() (n int64) {
	for _, r := range m {
		n += r.End - r.Off
	}
	return n
}

func (m marks) with(r ByteRange) marks {
	lo, hi := m.span(r.Off-1, r.End+1) // what is adjacent as well
	if lo < hi {
		r.Off, r.End = min(r.Off, m[lo].Off), max(r.End, m[hi-1].End)
	}
	return slices.Concat(m[:lo], marks{r}, m[hi:])
}

func (m marks) without(r ByteRange) marks {
	lo, hi := m.span(r.Off, r.End)
	if lo >= hi {
		return m
	}
	var rest marks
	if o := m[lo]; o.Off < r.Off {
		rest = append(rest, ByteRange{o.Off, r.Off})
	}
	if o := m[hi-1]; o.End > r.End {
		rest = append(rest, ByteRange{r.End, o.End})
	}
	return slices.Concat(m[:lo], rest, m[hi:])
}

// uncorrectable has the marks of an NQN and NSID, also while the namespace is removed.
type uncorrectable struct {
	t   *Target
	key protectedName
	now atomic.Pointer[marks] // nil: there never was any, and channels look for none

	mu        sync.Mutex
	dev       backend.Device // that has the marks
	info      backend.Info   // of dev
	queue     []*markChange
	working   bool
	stored    bool // the store may have some
	forgotten bool // nothing is stored any more
}

// markChange adds marks or takes them away.
type markChange struct {
	ByteRange
	add  bool
	err  error
	done func(error) // called once, by the goroutine that stores
}

var everything = ByteRange{0, math.MaxInt64}

// uncorrectableOf returns the marks of a namespace. The caller holds t.mu.
func (t *Target) uncorrectableOf(key protectedName) *uncorrectable {
	u := t.uncorrectable[key]
	if u == nil {
		u = &uncorrectable{t: t, key: key}
		t.uncorrectable[key] = u
	}
	return u
}

// ForgetUncorrectable forgets the marks of a namespace that was removed and does not come back,
// also in the store.
func (t *Target) ForgetUncorrectable(nqn string, nsid uint32) {
	key := protectedName{nqn, nsid}
	t.mu.Lock()
	u := t.uncorrectableOf(key)
	delete(t.uncorrectable, key)
	t.mu.Unlock()
	if u.now.Load() == nil && (t.marks == nil || t.marks.Uncorrectable(nqn, nsid) == nil) {
		return
	}
	done := make(chan struct{})
	u.begin()
	u.mu.Lock()
	u.stored = true
	u.mu.Unlock()
	u.store(&markChange{ByteRange: everything, done: func(err error) {
		if err != nil {
			t.log.Warn("marks of uncorrectable blocks stay stored after the end of their namespace",
				"subsystem", nqn, "nsid", nsid, "err", err)
		}
		u.mu.Lock()
		u.forgotten = true
		u.mu.Unlock()
		close(done)
	}})
	<-done
}

// attach adopts the storage of the namespace. Its marks are those that there are, or that are
// stored, if they are this storage's.
func (u *uncorrectable) attach(dev backend.Device) {
	if u.t.marks == nil {
		return
	}
	info := dev.Info()
	u.mu.Lock()
	defer u.mu.Unlock()
	kept := u.t.marks.Uncorrectable(u.key.nqn, u.key.nsid)
	same := u.dev != nil && u.info.Identity == info.Identity && !u.info.Volatile &&
		!info.Volatile || dev == u.dev
	u.dev, u.info, u.stored = dev, info, u.stored || kept != nil
	switch {
	case same:
	case kept != nil && kept.Identity == info.Identity && !info.Volatile:
		// They would come back with a restart, so writes have to take them away. They may be of an
		// earlier time, if it could not be stored that another storage has none.
		u.now.Store((*marks)(&kept.Ranges))
	case kept != nil || u.now.Load() != nil:
		u.now.Store(new(marks))
		u.storeLocked(&markChange{done: func(error) {}}) // what is stored has another identity
	}
}

// cut takes away the marks of blocks that the storage does not have any more: they may come back.
// It does not block. Until that is stored the marks are there, so writes to what has come back
// store that it has none.
func (u *uncorrectable) cut(size int64) {
	now := u.now.Load()
	if now == nil {
		return
	}
	if _, found := now.find(size, math.MaxInt64); found {
		u.store(&markChange{ByteRange: ByteRange{size, math.MaxInt64}, done: func(error) {}})
	}
}

// begin makes channels look for marks.
func (u *uncorrectable) begin() { u.now.CompareAndSwap(nil, new(marks)) }

// apply makes changes of marks, one after the other. grown has all that have been there or are
// added, whatever is taken away.
func (m marks) apply(changes []*markChange) (grown, next marks) {
	grown, next = m, m
	for _, c := range changes {
		c.err = nil
		if !c.add {
			next = next.without(c.ByteRange)
		} else if more := grown.with(c.ByteRange); more.size() <= MaxUncorrectable {
			grown, next = more, next.with(c.ByteRange)
		} else {
			c.err = errTooMuchMarked
		}
	}
	return grown, next
}

// errTooMuchMarked is Capacity Exceeded (Base section 4.2.3.1, 81h): no status is nearer.
var errTooMuchMarked = fmt.Errorf("at most %d bytes of a namespace can be marked uncorrectable: %w",
	MaxUncorrectable, backend.ErrNoSpace)

// change makes a change that need not be stored.
func (u *uncorrectable) change(c *markChange) error {
	for {
		before := u.now.Load()
		if _, next := before.apply([]*markChange{c}); u.now.CompareAndSwap(before, &next) {
			return c.err
		}
	}
}

// store makes a change once it is stored. It does not block.
func (u *uncorrectable) store(c *markChange) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.storeLocked(c)
}

func (u *uncorrectable) storeLocked(c *markChange) {
	u.queue = append(u.queue, c)
	if !u.working {
		u.working = true
		go u.work()
	}
}

// work stores changes until there are no more.
func (u *uncorrectable) work() {
	for {
		u.mu.Lock()
		changes := u.queue
		u.queue, u.working = nil, len(changes) > 0
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

// commit stores changes and makes them visible. If that fails, the store has the marks before or
// after, and so everything is marked that either has: a write to it stores that it is not.
func (u *uncorrectable) commit(changes []*markChange) error {
	for {
		before := u.now.Load()
		grown, next := before.apply(changes)
		u.mu.Lock()                 // not for long: reactors wait for it
		if u.now.Load() != before { // of other storage, for instance
			u.mu.Unlock()
			continue
		}
		var kept *Uncorrectable
		if len(next) > 0 && !u.info.Volatile {
			kept = &Uncorrectable{u.info.Identity, next}
		}
		u.stored = u.stored || kept != nil
		stored := u.stored && !u.forgotten
		u.mu.Unlock()
		var err error
		if stored {
			err = u.t.marks.SetUncorrectable(u.key.nqn, u.key.nsid, kept)
		}
		if err != nil {
			err = fmt.Errorf("which blocks are uncorrectable cannot be stored: %w", err)
			next = grown
		}
		if u.now.CompareAndSwap(before, &next) {
			return err
		}
	}
}
