package logs

import (
	"io"
	"sync"
	"time"
)

// sinkSize is the number of bytes that a sink holds before it drops lines.
const sinkSize = 1 << 20

// Sink is a Writer that never waits for the Writer behind it, so that a full pipe does not stall a
// reactor that logs. A goroutine writes the collected lines. Lines without room are dropped and
// counted. Any goroutine may write, one line at a time.
type Sink struct {
	out     io.Writer
	dropped func(lines int)

	mu      sync.Mutex
	pending []byte
	lost    int
	closed  bool

	wake  chan struct{} // holds one token
	ended chan struct{}
}

// NewSink returns a Sink before out. dropped is called on the goroutine that writes when lines were
// dropped and there is room again. The caller calls Close.
func NewSink(out io.Writer, dropped func(lines int)) *Sink {
	s := &Sink{
		out: out, dropped: dropped, wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	go s.run()
	return s
}

func (s *Sink) Write(line []byte) (int, error) {
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

func (s *Sink) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Sink) run() {
	defer close(s.ended)
	var batch []byte
	for {
		s.mu.Lock()
		batch, s.pending = s.pending, batch[:0]
		lost, closed := s.lost, s.closed
		s.lost = 0
		s.mu.Unlock()
		switch {
		case len(batch) > 0 || lost > 0:
			_, _ = s.out.Write(batch) // an error of the log cannot be logged
			if lost > 0 {
				s.dropped(lost)
			}
		case closed:
			return
		default:
			<-s.wake
		}
	}
}

// Close writes pending lines, and waits for patience at most. Lines written later are lost.
func (s *Sink) Close(patience time.Duration) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.signal()
	select {
	case <-s.ended:
	case <-time.After(patience):
	}
}
