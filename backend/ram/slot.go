package ram

import (
	"runtime"
	"sync/atomic"
)

// slot refers to the frame that holds its part of the device, in one word:
//
//	bit 63      locked: the frame is being copied from or changed in place
//	bits 62:40  readers: zero-copy reads outstanding on the frame
//	bits 39:0   number of the frame plus one; 0 if there is none, which reads as zeroes
//
// The holder of the lock may change the frame in place if it has no readers, and may replace it in
// any case. It never waits for anything, but may be preempted, so a spinning goroutine soon yields.
type slot struct{ word atomic.Uint64 }

const (
	locked     = 1 << 63
	oneReader  = 1 << 40
	maxReaders = locked/oneReader - 1
	frameMask  = oneReader - 1
)

// slotWord is the content of a slot at one moment.
type slotWord uint64

// frame returns the number of the frame, -1 if there is none.
func (w slotWord) frame() int64 { return int64(w&frameMask) - 1 }

// readers returns the number of zero-copy reads outstanding on the frame.
func (w slotWord) readers() int64 { return int64(w &^ locked / oneReader) }

func (s *slot) load() slotWord { return slotWord(s.word.Load()) }

// lock locks the slot and returns its content.
func (s *slot) lock() slotWord {
	for i := 1; ; i++ {
		if w := s.word.Load(); w&locked == 0 && s.word.CompareAndSwap(w, w|locked) {
			return slotWord(w)
		}
		pause(i)
	}
}

// tryLock locks the slot unless it is locked.
func (s *slot) tryLock() (slotWord, bool) {
	w := s.word.Load()
	return slotWord(w), w&locked == 0 && s.word.CompareAndSwap(w, w|locked)
}

// unlock clears the top bit: the carry of the addition is lost.
func (s *slot) unlock() { s.word.Add(locked) }

// replace puts a frame without readers into a locked slot, unlocks it, and returns its old content.
func (s *slot) replace(frame int64) slotWord { return slotWord(s.word.Swap(uint64(frame + 1))) }

// addReader returns the frame with one more reader, -1 without a frame. It returns false if no more
// can read.
func (s *slot) addReader() (frame int64, ok bool) {
	for i := 1; ; i++ {
		w := s.word.Load()
		switch {
		case w&frameMask == 0: // a first write in progress is not visible yet
			return -1, true
		case w&locked != 0:
			pause(i)
		case slotWord(w).readers() == maxReaders:
			return -1, false
		case s.word.CompareAndSwap(w, w+oneReader):
			return slotWord(w).frame(), true
		}
	}
}

// removeReader undoes addReader. It returns false if the slot now holds another frame.
func (s *slot) removeReader(frame int64) bool {
	for {
		w := s.word.Load()
		if slotWord(w).frame() != frame {
			return false
		}
		if s.word.CompareAndSwap(w, w-oneReader) {
			return true
		}
	}
}

func pause(i int) {
	if i%128 == 0 {
		runtime.Gosched()
	}
}
