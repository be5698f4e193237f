package rdma

import (
	"log/slog"
	"sync"
	"time"
)

// limitedLog passes on a few lines a second, so that peers cannot fill the disk with refusals.
type limitedLog struct {
	log *slog.Logger

	mu      sync.Mutex
	second  int64
	lines   int
	dropped int
}

const linesPerSecond = 10

// warn logs unless too much was logged in this second. Any goroutine may call it; never per I/O.
func (l *limitedLog) warn(msg string, args ...any) {
	now := time.Now().Unix()
	l.mu.Lock()
	dropped := 0
	if now != l.second {
		l.second, l.lines, dropped, l.dropped = now, 0, l.dropped, 0
	}
	l.lines++
	if l.lines > linesPerSecond {
		l.dropped++
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	if dropped > 0 {
		args = append(args, "lines dropped before", dropped)
	}
	l.log.Warn(msg, args...)
}
