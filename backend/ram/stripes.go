package ram

import (
	"runtime"
	"sync/atomic"
)

// nStripes is the number of locks; it is at least the number of granules of a chunk, so that a chunk has each stripe once at
// most.
const nStripes = 1024

// stripe is a spin lock on a cache line of its own. It is held while a granule is copied and never across anything that
// waits; a holder may be preempted all the same, so waiters soon let others run.
type stripe struct {
	held atomic.Uint32
	_    [60]byte
}

func (s *stripe) lock() {
	if !s.held.CompareAndSwap(0, 1) {
		s.wait()
	}
}

func (s *stripe) wait() {
	for i := 1; ; i++ {
		if s.held.Load() == 0 && s.held.CompareAndSwap(0, 1) {
			return
		}
		if i%128 == 0 {
			runtime.Gosched()
		}
	}
}

func (s *stripe) unlock() { s.held.Store(0) }

// stripes are the locks of a device. Neighbouring granules have different stripes.
type stripes struct {
	shift uint // of a granule
	table [nStripes]stripe
	// freeing is held by whoever holds more than one stripe.
	freeing stripe
}

// of is the stripe of the granule at off.
func (s *stripes) of(off int64) *stripe { return &s.table[off>>s.shift%nStripes] }

// rest is the number of bytes from off to the end of its granule.
func (s *stripes) rest(off int64) int { return 1<<s.shift - int(off&(1<<s.shift-1)) }

// lockRange takes the stripes of [off, end), which is at most a chunk. Deadlock is impossible: the only other holders hold one
// stripe each and do not wait for another.
func (s *stripes) lockRange(off, end int64) {
	s.freeing.lock()
	for ; off < end; off += 1 << s.shift {
		s.of(off).lock()
	}
}

func (s *stripes) unlockRange(off, end int64) {
	for ; off < end; off += 1 << s.shift {
		s.of(off).unlock()
	}
	s.freeing.unlock()
}
