package testutil

import (
	"bytes"
	"log/slog"
	"sync"
)

// Log is a log that a test can read while it is written. The zero Log is empty. Any goroutine may
// use it.
type Log struct {
	mu   sync.Mutex
	b    bytes.Buffer
	most int
}

// Limit makes the log forget its first half when it exceeds n bytes.
func (l *Log) Limit(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most = n
}

// Logger returns a logger that writes to the log, at all levels.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.most > 0 && l.b.Len() > l.most {
		l.b.Next(l.b.Len() / 2)
	}
	return l.b.Write(b)
}

// String returns the whole log.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
