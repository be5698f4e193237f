package app

import (
	"io"
	"log/slog"
	"sync"
	"time"
)

// outputPatience is how long the end of the program may wait for what reads its output.
const outputPatience = 2 * time.Second

// openLog makes a log that never waits for w; end writes what is left.
func openLog(json bool, level slog.Leveler, w io.Writer) (log *slog.Logger, end func()) {
	direct := newLogger(json, level, w)
	s := newSink(w, func(lines int) {
		direct.Warn("log lines were dropped, since they were not read in time", "lines", lines)
	})
	return newLogger(json, level, s), func() { s.close(outputPatience) }
}

func newLogger(json bool, level slog.Leveler, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if json {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// sinkSize is how many bytes a sink holds back before it drops lines.
const sinkSize = 1 << 20

// sink is a Writer that never waits for the one behind it, so that a full pipe does not stall a
// reactor that logs. A goroutine writes the lines that were collected; those for which there is no
// room are dropped and counted. Any goroutine may write, one line at a time.
type sink struct {
	out io.Writer
	// dropped is called on the writing goroutine when lines were dropped and there is room again.
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

// close writes what is pending and waits for that, but not longer than patience. Lines written
// later are lost.
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
