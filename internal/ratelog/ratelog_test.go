package ratelog

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// Peers cannot fill the log, and what was dropped is counted.
func TestFewLines(t *testing.T) {
	var b bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&b, nil)))
	began := time.Now().Unix()
	for i := 0; i < 1000 || l.dropped == 0; i++ { // none are just after a second has begun
		l.Warn("x")
	}
	if n, seconds := strings.Count(b.String(), "\n"), int(time.Now().Unix()-began)+
		1; n > seconds*linesPerSecond {
		t.Errorf("%d lines in %d seconds", n, seconds)
	}
	b.Reset()
	l.second-- // another second
	l.Info("y", "key", "value")
	if got := b.String(); !strings.Contains(got, "level=INFO msg=y key=value") ||
		!strings.Contains(got, "dropped\" lines=") {
		t.Errorf("the next second began with %q", got)
	}
}
