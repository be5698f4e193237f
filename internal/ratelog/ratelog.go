// Package ratelog limits the log lines that peers cause to a few per second, so that they cannot
// fill the disk.
package ratelog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Logger passes lines on to another logger as long as there are few. Any goroutine may use it, but
// not for each I/O: it takes a lock.
type Logger struct {
	log *slog.Logger

	mu      sync.Mutex
	second  int64
	lines   int
	dropped int
}

const linesPerSecond = 10

// New makes a Logger in front of log.
func New(log *slog.Logger) *Logger { return &Logger{log: log} }

// Warn logs at the level of warnings.
func (l *Logger) Warn(msg string, args ...any) { l.print(slog.LevelWarn, msg, args) }

// Info logs at the level of information.
func (l *Logger) Info(msg string, args ...any) { l.print(slog.LevelInfo, msg, args) }

// print logs unless too much was logged in this second. The first line of a later second says how
// many were dropped.
func (l *Logger) print(level slog.Level, msg string, args []any) {
	now := time.Now().Unix()
	l.mu.Lock()
	dropped := 0
	if now != l.second {
		l.second, l.lines, dropped, l.dropped = now, 0, l.dropped, 0
		if dropped > 0 {
			l.lines++
		}
	}
	l.lines++
	if l.lines > linesPerSecond {
		l.dropped++
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	if dropped > 0 {
		l.log.Warn("too many log lines, some were dropped", "lines", dropped)
	}
	l.log.Log(context.Background(), level, msg, args...)
}
