package target

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
)

// The counters of a namespace: successful operations by backend.Op, and then these.
const (
	// read, then written: 512 bytes each (Base section 5.1.12.1.3)
	statSectors = int(backend.OpWriteUncorrectable) + 1
	statBusy    = statSectors + 2 // nanoseconds with I/O outstanding
	statErrors  = statBusy + 1    // failed operations by index of ioErrors
	statCount   = statErrors + len(ioErrors)
)

type counters [statCount]uint64

func (t *counters) add(o *counters) {
	for i, n := range o {
		t[i] += n
	}
}

// ioStats are the counters of one channel: own is written by its reactor, and published once per
// batch to where other goroutines read them. Errors are counted there at once.
type ioStats struct {
	own, stored [statErrors]uint64
	published   [statCount]atomic.Uint64
}

// publish makes the counters visible. It stores only changed counters: an atomic store costs more
// than the count.
func (s *ioStats) publish() {
	for i, n := range &s.own {
		if n != s.stored[i] {
			s.stored[i] = n
			s.published[i].Store(n)
		}
	}
}

// users are the reactors that have a channel to a namespace, and the counters of these channels, so
// that totals survive queues and channels.
type users struct {
	mu       sync.Mutex
	retired  bool // no more channels
	fresh    freshChannel
	handlers []*Handler
	stats    []*ioStats
}

// freshChannel is the state in which a new channel begins: the other channels have it by then.
type freshChannel struct {
	quiesce quiesce
	changed bool
	lock    *rangeLock
	late    map[*lateWrites]bool
}

// join makes h a user. It returns nil if the namespace is retired.
func (u *users) join(h *Handler) (*ioStats, freshChannel) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.retired {
		return nil, freshChannel{}
	}
	s := new(ioStats)
	u.handlers, u.stats = append(u.handlers, h), append(u.stats, s)
	f := u.fresh
	f.late = maps.Clone(f.late)
	return s, f
}

// set changes the initial state of later users, and returns the users that have joined.
func (u *users) set(change func(*freshChannel)) []*Handler {
	u.mu.Lock()
	defer u.mu.Unlock()
	change(&u.fresh)
	return u.handlers
}

// list returns the users that have joined.
func (u *users) list() []*Handler { return u.set(func(*freshChannel) {}) }

// isRetired reports whether the namespace is.
func (u *users) isRetired() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.retired
}

// retire admits no more users and returns the users that have joined.
func (u *users) retire() []*Handler {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.retired = true
	return u.handlers
}

// total sums the published counters.
func (u *users) total() (t counters) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.stats {
		for i := range t {
			t[i] += s.published[i].Load()
		}
	}
	return t
}
