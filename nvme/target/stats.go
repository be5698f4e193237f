package target

import (
	"sync"
	"sync/atomic"

	"github.com/nvmf-target/nvmf-target/backend"
)

// otherOps are the operations that move no data, from OpFlush on.
const otherOps = backend.OpDiscard - backend.OpFlush + 1

// ioTotals counts what a namespace did. Sectors are 512 bytes whatever the block size (log 02h,
// Base section 5.1.12.1.3).
type ioTotals struct {
	reads, writes         uint64
	readSectors, wrotSecs uint64
	mediaErrors           uint64
	others                [otherOps]uint64 // by backend.Op less OpFlush
	busy                  int64            // nanoseconds with I/O outstanding
}

func (t *ioTotals) add(o ioTotals) {
	t.reads += o.reads
	t.writes += o.writes
	t.readSectors += o.readSectors
	t.wrotSecs += o.wrotSecs
	t.mediaErrors += o.mediaErrors
	for i, n := range o.others {
		t.others[i] += n
	}
	t.busy += o.busy
}

// ioStats is one channel's counters: own is written by the reactor, the atomics are what others
// read, stored once per batch.
type ioStats struct {
	own    ioTotals
	shared struct {
		reads, writes         atomic.Uint64
		readSectors, wrotSecs atomic.Uint64
		mediaErrors           atomic.Uint64
		others                [otherOps]atomic.Uint64
		busy                  atomic.Int64
	}
	published ioTotals
}

// publish makes the counters visible. Only what changed is stored: an atomic store costs more than
// the count.
func (s *ioStats) publish() {
	if s.own.reads != s.published.reads {
		s.shared.reads.Store(s.own.reads)
		s.shared.readSectors.Store(s.own.readSectors)
	}
	if s.own.writes != s.published.writes {
		s.shared.writes.Store(s.own.writes)
		s.shared.wrotSecs.Store(s.own.wrotSecs)
	}
	if s.own.mediaErrors != s.published.mediaErrors {
		s.shared.mediaErrors.Store(s.own.mediaErrors)
	}
	if s.own.others != s.published.others {
		for i, n := range s.own.others {
			s.shared.others[i].Store(n)
		}
	}
	if s.own.busy != s.published.busy {
		s.shared.busy.Store(s.own.busy)
	}
	s.published = s.own
}

func (s *ioStats) load() ioTotals {
	t := ioTotals{
		reads: s.shared.reads.Load(), writes: s.shared.writes.Load(),
		readSectors: s.shared.readSectors.Load(), wrotSecs: s.shared.wrotSecs.Load(),
		mediaErrors: s.shared.mediaErrors.Load(), busy: s.shared.busy.Load(),
	}
	for i := range t.others {
		t.others[i] = s.shared.others[i].Load()
	}
	return t
}

// users is the reactors that have a channel to a namespace, and the counters of these channels, so
// that totals survive queues and channels.
type users struct {
	mu       sync.Mutex
	retired  bool // no more channels
	handlers []*Handler
	stats    []*ioStats
}

// join makes h a user. It returns nil if the namespace is retired.
func (u *users) join(h *Handler) *ioStats {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.retired {
		return nil
	}
	s := new(ioStats)
	u.handlers, u.stats = append(u.handlers, h), append(u.stats, s)
	return s
}

// retire lets nobody join any more and returns who has.
func (u *users) retire() []*Handler {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.retired = true
	return u.handlers
}

func (u *users) total() (t ioTotals) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.stats {
		t.add(s.load())
	}
	return t
}
