package tcp

import (
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

const deadline = time.Minute

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// wait receives from ch or fails at the deadline.
func wait[T any](tb testing.TB, what string, ch <-chan T) T {
	tb.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(deadline):
		tb.Fatalf("no sign of %s after %v", what, deadline)
		panic("unreachable")
	}
}

// eventually polls cond until it holds.
func eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for end := time.Now().Add(deadline); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("%s: not after %v", what, deadline)
		}
	}
}

// countingLog counts lines.
func countingLog(n *atomic.Int64) *slog.Logger {
	return slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int,
		error,
	) {
		n.Add(1)
		return len(b), nil
	}), nil))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
