package ram

import (
	"runtime"
	"sync/atomic"
)

// stripe is the lock of the granules that share it, in one word:
//
//	bit 31      held: a granule is being copied or cleared, never across anything that waits
//	bits 30:16  writers that wait for loans; while there are any nothing is lent, so that they have their turn
//	bits 15:0   loans: granules that somebody outside reads in place
//
// Reading by copy takes held and does not mind loans; changing something takes it while there are none. A holder may be preempted,
// so those who spin soon let others run.
type stripe struct{ word atomic.Uint32 }

const (
	held    = 1 << 31
	waiter  = 1 << 16
	waiters = held - waiter // mask, and the most of them
	loans   = waiter - 1    // mask, and the most of them
)

// lock takes the stripe to copy from a granule.
func (s *stripe) lock() {
	for i := 1; ; i++ {
		if w := s.word.Load(); w&held == 0 && s.word.CompareAndSwap(w, w|held) {
			return
		}
		pause(i)
	}
}

// unlock clears the top bit; the carry goes nowhere.
func (s *stripe) unlock() { s.word.Add(held) }

// tryChange takes the stripe to change a granule. It returns false if loans are out.
func (s *stripe) tryChange() bool {
	for i := 1; ; i++ {
		w := s.word.Load()
		switch {
		case w&held != 0:
			pause(i)
		case w&loans != 0:
			return false
		case s.word.CompareAndSwap(w, w|held):
			return true
		}
	}
}

// change is tryChange for one who waits if he must: then he counts among the waiters, and waits remembers that until the stripe
// is his. If the count is full he is not in it, which does no harm: those who are have everybody woken.
func (s *stripe) change(waits *bool) bool {
	for i := 1; ; i++ {
		w := s.word.Load()
		switch {
		case w&held != 0:
			pause(i)
		case w&loans == 0:
			next := w | held
			if *waits {
				next -= waiter
			}
			if s.word.CompareAndSwap(w, next) {
				*waits = false
				return true
			}
		case *waits || w&waiters == waiters:
			return false
		default:
			*waits = s.word.CompareAndSwap(w, w+waiter)
		}
	}
}

// lend takes a loan, unless writers wait.
func (s *stripe) lend() bool {
	for i := 1; ; i++ {
		w := s.word.Load()
		switch {
		case w&held != 0:
			pause(i)
		case w&waiters != 0 || w&loans == loans:
			return false
		case s.word.CompareAndSwap(w, w+1):
			return true
		}
	}
}

// giveBack returns a loan. It says whether it was the last one and writers wait.
func (s *stripe) giveBack() bool {
	w := s.word.Add(^uint32(0))
	return w&loans == 0 && w&waiters != 0
}

func pause(i int) {
	if i%128 == 0 {
		runtime.Gosched()
	}
}

// stripes are the locks of a device, found by the number of a granule. Commands on different granules rarely meet, and neighbours
// share a cache line, because most commands take several in a row.
type stripes struct {
	shift uint // of a granule
	mask  int64
	table []stripe
	// freeing is held by whoever holds more than one stripe.
	freeing stripe
}

// mostStripes bounds the table to 256 KiB. With a thousand granules on loan one in 64 writers meets a loan of another granule.
const mostStripes = 64 << 10

// newStripes makes the locks of a device of size bytes. There are at least as many as a chunk has granules, so that a chunk has each
// once at most.
func newStripes(size int64, shift uint) stripes {
	n := int64(chunk >> shift)
	for n<<shift < size && n < mostStripes {
		n *= 2
	}
	return stripes{shift: shift, mask: n - 1, table: make([]stripe, n)}
}

// of is the stripe of the granule at off.
func (s *stripes) of(off int64) *stripe { return &s.table[off>>s.shift&s.mask] }

// rest is the number of bytes from off to the end of its granule.
func (s *stripes) rest(off int64) int { return 1<<s.shift - int(off&(1<<s.shift-1)) }

// tryRange takes the stripes of [off, end), at most a chunk, to change it. It returns false, holding nothing, if any loan is out.
// Deadlock is impossible: the only other holders hold one stripe each and do not wait for another.
func (s *stripes) tryRange(off, end int64) bool {
	s.freeing.lock()
	for at := off; at < end; at += 1 << s.shift {
		if !s.of(at).tryChange() {
			s.unlockRange(off, at)
			return false
		}
	}
	return true
}

func (s *stripes) unlockRange(off, end int64) {
	for ; off < end; off += 1 << s.shift {
		s.of(off).unlock()
	}
	s.freeing.unlock()
}

// first is the start of the granule at off.
func (s *stripes) first(off int64) int64 { return off &^ (1<<s.shift - 1) }

// lend takes loans of the granules of [off, end), as many as it gets, and returns where it stopped.
func (s *stripes) lend(off, end int64) int64 {
	at := s.first(off)
	for at < end && s.of(at).lend() {
		at += 1 << s.shift
	}
	return min(at, end)
}

// giveBack returns loans of the granules of [off, end). It says whether that lets a writer go on.
func (s *stripes) giveBack(off, end int64) (wake bool) {
	for at := s.first(off); at < end; at += 1 << s.shift {
		if s.of(at).giveBack() {
			wake = true
		}
	}
	return wake
}
