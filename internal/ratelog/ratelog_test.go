package ratelog

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// Peers cannot fill the log, and what was kept out of it is counted.
func TestFewLines(t *testing.T) {
	var b bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&b, nil)))
	for range 1000 {
		l.Warn("x")
	}
	if n := strings.Count(b.String(), "\n"); n > 2*linesPerSecond {
		t.Errorf("%d lines", n)
	}
	b.Reset()
	l.second-- // another second
	l.Info("y", "key", "value")
	if got := b.String(); !strings.Contains(got, "level=INFO msg=y key=value") || !strings.Contains(got, "lines dropped before") {
		t.Errorf("the next second began with %q", got)
	}
}
