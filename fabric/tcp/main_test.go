package tcp

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	before := openFiles()
	code := m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Println(err)
		code = 1
	}
	if after := openFiles(); after > before {
		fmt.Printf("%d descriptors leaked\n", after-before)
		code = 1
	}
	os.Exit(code)
}

func openFiles() int {
	// The first use of a pipe opens the runtime's own poller for good.
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(list)
}

const deadline = 20 * time.Second

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
	return slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) { n.Add(1); return len(b), nil }), nil))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
