package tcp

import (
	"io"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// few returns the number of random sequences that a test tries: n in "make soak", a quarter in
// "make test".
func few(n int) int {
	if testutil.Soaking() {
		return n
	}
	return n / 4
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func countingLog(n *atomic.Int64) *slog.Logger {
	return slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
		n.Add(1)
		return len(b), nil
	}), nil))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
