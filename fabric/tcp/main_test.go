package tcp

import (
	"io"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func countingLog(n *atomic.Int64) *slog.Logger {
	return slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
		n.Add(1)
		return len(b), nil
	}), nil))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
