package ram

import (
	"runtime"
	"sync/atomic"
)

// slot says where one frame's worth of the device lies, in one word:
//
//	bit 63      held: the frame is being copied from or changed in place, never across anything that waits
//	bits 62:40  loans of the frame: somebody outside reads it in place
//	bits 39:0   number of the frame and one, 0 if there is none: it reads as zeroes
//
// Whoever holds the slot may change the frame in place if there are no loans, and put another one
// into it in any case. A holder may be preempted, so those who spin soon let others run.
type slot struct{ word atomic.Uint64 }

const (
	held     = 1 << 63
	oneLoan  = 1 << 40
	mostLent = held/oneLoan - 1
	frameNo  = oneLoan - 1
)

// place is the word of a slot.
type place uint64

// frame is the frame of a slot, -1 if it has none.
func (p place) frame() int64 { return int64(p&frameNo) - 1 }

// loans is how often it is lent.
func (p place) loans() int64 { return int64(p &^ held / oneLoan) }

// load is the slot as it is now.
func (s *slot) load() place { return place(s.word.Load()) }

// hold takes the slot.
func (s *slot) hold() place {
	for i := 1; ; i++ {
		if w := s.word.Load(); w&held == 0 && s.word.CompareAndSwap(w, w|held) {
			return place(w)
		}
		pause(i)
	}
}

// try takes the slot if nobody holds it.
func (s *slot) try() (place, bool) {
	w := s.word.Load()
	return place(w), w&held == 0 && s.word.CompareAndSwap(w, w|held)
}

// release lets go of the slot: the top bit is cleared, and the carry goes nowhere.
func (s *slot) release() { s.word.Add(held) }

// replace puts a frame into a slot that the caller holds, lets go of it, and returns what was
// there.
func (s *slot) replace(frame int64) place { return place(s.word.Swap(uint64(frame + 1))) }

// lend takes a loan of the frame and returns it, -1 if there is none. It returns false if too many
// are out.
func (s *slot) lend() (frame int64, ok bool) {
	for i := 1; ; i++ {
		w := s.word.Load()
		switch {
		case w&frameNo == 0: // what is being written for the first time is not there yet
			return -1, true
		case w&held != 0:
			pause(i)
		case place(w).loans() == mostLent:
			return -1, false
		case s.word.CompareAndSwap(w, w+oneLoan):
			return place(w).frame(), true
		}
	}
}

// giveBack returns a loan. It returns false if the frame is not in the slot any more.
func (s *slot) giveBack(frame int64) bool {
	for {
		w := s.word.Load()
		if place(w).frame() != frame {
			return false
		}
		if s.word.CompareAndSwap(w, w-oneLoan) {
			return true
		}
	}
}

func pause(i int) {
	if i%128 == 0 {
		runtime.Gosched()
	}
}
