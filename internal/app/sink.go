package app

import (
	"io"
	"sync"
	"time"
)

// sinkSize is how many bytes a sink holds back before it drops lines.
const sinkSize = 1 << 20

// sink is a Writer that never waits for the one behind it, so that reactors may log although nobody
// reads a pipe. A goroutine writes what was collected; lines for which there is no room are dropped
// and counted. Any goroutine may write, a line each time.
type sink struct {
	out io.Writer
	// dropped is called when lines were dropped and there is room again, on the goroutine that writes.
	dropped func(lines int)

	mu      sync.Mutex
	pending []byte
	lost    int
	closed  bool

	wake  chan struct{} // holds one token
	ended chan struct{}
}

func newSink(out io.Writer, dropped func(lines int)) *sink {
	s := &sink{
		out: out, dropped: dropped, wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	go s.run()
	return s
}

// Write implements io.Writer.
func (s *sink) Write(line []byte) (int, error) {
	s.mu.Lock()
	if s.closed || len(s.pending)+len(line) > sinkSize {
		s.lost++
	} else {
		s.pending = append(s.pending, line...)
	}
	s.mu.Unlock()
	s.signal()
	return len(line), nil
}

func (s *sink) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *sink) run() {
	defer close(s.ended)
	var batch []byte
	for closed := false; !closed; {
		<-s.wake
		for {
			var lost int
			s.mu.Lock()
			batch, s.pending = s.pending, batch[:0]
			lost, s.lost = s.lost, 0
			closed = s.closed
			s.mu.Unlock()
			if len(batch) == 0 && lost == 0 {
				break
			}
			_, _ = s.out.Write(batch) // there is nobody to tell
			if lost > 0 {
				s.dropped(lost)
			}
		}
	}
}

// close writes what is pending, for as long as that may take; what is written later is lost.
func (s *sink) close(patience time.Duration) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.signal()
	select {
	case <-s.ended:
	case <-time.After(patience):
	}
}
