package disk

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestCancel: a canceled read of a disk that does not answer completes, and a write that waits
// after it is not even started.
func TestCancel(t *testing.T) {
	each(t, func(t *testing.T, e Engine) {
		if e.Name == Threads {
			t.Skip("threads cannot cancel a system call in progress")
		}
		var p [2]int
		testutil.Must(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
		d := testutil.Value(New(Config{
			Path: "pipe", FD: p[0], Engine: e,
			Info: backend.Info{Size: 1 << 20, BlockSize: 4096, PhysicalBlockSize: 4096},
		}))(t)
		c := backendtest.NewClient(t, d, 64<<10)
		read, write := c.Read(0, c.Memory(0, 4096)), c.Write(0, c.Memory(4096, 4096))
		flush := &backend.IO{Op: backend.OpFlush}
		c.Submit(read, write)
		testutil.MustEqual(t, c.Channel.Poll(make([]*backend.IO, 2)), 0, "an empty pipe was read")
		for _, io := range []*backend.IO{flush, write, read} { // the device does not have the first
			c.Channel.(backend.Canceler).Cancel(io)
		}
		c.Wait(2)
		for _, io := range []*backend.IO{read, write} {
			testutil.True(t, errors.Is(io.Err, backend.ErrAborted), "%v: %v", io.Op, io.Err)
		}
		testutil.Value(unix.Write(p[1], make([]byte, 4096)))(t)
		c.MustDo(c.Read(0, c.Memory(0, 4096))) // the op can be used again
		c.Close()
		mustClose(t, d)
		testutil.Check(t, unix.Close(p[1]))
	})
}

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
