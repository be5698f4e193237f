package disk

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestFallsBack: where io_uring is forbidden, threads are used, with one warning for all disks,
// unless io_uring is configured. Probe reports it beforehand.
func TestFallsBack(t *testing.T) {
	old := available
	defer func() { available, warnOnce = old, sync.Once{} }()
	available = func() error { return unix.EPERM }
	warnOnce = sync.Once{}
	var log bytes.Buffer
	for range 3 {
		f := testutil.Value(os.Create(filepath.Join(t.TempDir(), "f")))(t)
		defer func() { _ = f.Close() }()
		d, err := New(Config{
			FD: int(f.Fd()), Info: backend.Info{BlockSize: 512},
			Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		testutil.True(t, err == nil && !d.uring, "%v, io_uring %v", err, d.uring)
		e := Engine{Name: IOUring}
		testutil.Is(t, testutil.Err(New(Config{Info: backend.Info{BlockSize: 512}, Engine: e})),
			unix.EPERM, "engine io_uring where that is forbidden")
		var r backend.Report
		(&Engine{}).Probe(&r)
		if e.Probe(&r); len(r.Errors) != 1 || !strings.Contains(r.Errors[0].What, "io_uring") {
			t.Errorf("%+v", r)
		}
	}
	n := strings.Count(log.String(), "\n")
	testutil.True(t, n == 1 && strings.Contains(log.String(), "level=WARN"), "%d lines: %s", n,
		log.String())
}
