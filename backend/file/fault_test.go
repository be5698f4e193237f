package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/backendtest"
)

func expect(t *testing.T, c *backendtest.Client, io *backend.IO, want error) {
	t.Helper()
	if err := c.Do(io); !errors.Is(err, want) || (err == nil) != (want == nil) {
		t.Errorf("%v: %v, want %v", io.Op, err, want)
	}
}

// replaceSync makes fdatasync fn until the end of the test.
func replaceSync(t *testing.T, fn func(fd int) error) {
	old := fdatasync
	fdatasync = fn
	t.Cleanup(func() { fdatasync = old })
}

// TestFailedFlushStays: after a flush failed no flush and no write succeeds until the device is opened again.
func TestFailedFlushStays(t *testing.T) {
	cfg := Config{Path: filepath.Join(t.TempDir(), "disk.img"), Size: 1 << 20, BlockSize: 4096}
	var fail atomic.Bool
	replaceSync(t, func(fd int) error {
		if fail.Load() {
			return unix.EIO
		}
		return unix.Fdatasync(fd)
	})
	d := mustOpen(t, cfg)
	c := backendtest.NewClient(t, d, 8192)
	b := c.Memory(0, 4096)
	flush := &backend.IO{Op: backend.OpFlush}
	c.MustDo(flush)
	c.MustDo(c.Write(0, b))
	fail.Store(true)
	expect(t, c, flush, backend.ErrIO)
	fail.Store(false)
	expect(t, c, flush, backend.ErrIO)
	expect(t, c, c.Write(0, b), backend.ErrIO)
	expect(t, c, &backend.IO{Op: backend.OpWriteZeroes, Len: 4096}, backend.ErrIO)
	expect(t, c, &backend.IO{Op: backend.OpDiscard, Len: 4096}, backend.ErrIO)
	if err := c.Do(flush); err == nil || !strings.Contains(err.Error(), "until the namespace is opened again") {
		t.Errorf("unclear: %v", err)
	}
	expect(t, c, c.Read(0, b), nil)
	c.Close()
	mustClose(t, d)

	d = mustOpen(t, cfg)
	c = backendtest.NewClient(t, d, 8192)
	expect(t, c, c.Write(0, c.Memory(0, 4096)), nil)
	expect(t, c, flush, nil)
	c.Close()
	mustClose(t, d)
}

// TestFUAIsDurable: through the page cache FUA flushes, and its failure stays.
func TestFUAIsDurable(t *testing.T) {
	var fail atomic.Bool
	var syncs atomic.Int64
	replaceSync(t, func(int) error {
		syncs.Add(1)
		if fail.Load() {
			return unix.EIO
		}
		return nil
	})
	d := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "disk.img"), Size: 1 << 20, BlockSize: 4096, Buffered: true})
	c := backendtest.NewClient(t, d, 8192)
	fua := func(op backend.Op) *backend.IO {
		return &backend.IO{Op: op, Flags: backend.FUA, Len: 4096, Segs: c.Segs(c.Memory(0, 4096))}
	}
	c.MustDo(fua(backend.OpWrite), fua(backend.OpWriteZeroes))
	if syncs.Load() == 0 {
		t.Error("FUA did not flush")
	}
	fail.Store(true)
	expect(t, c, fua(backend.OpWrite), backend.ErrIO)
	fail.Store(false)
	expect(t, c, fua(backend.OpWrite), backend.ErrIO)
	c.Close()
	mustClose(t, d)
}

// TestFlushesShare: flushes that wait for one in progress are served by one more, and not by the one in progress, which may have
// begun before the writes they cover.
func TestFlushesShare(t *testing.T) {
	begun, proceed := make(chan struct{}), make(chan struct{})
	var syncs atomic.Int64
	replaceSync(t, func(int) error {
		if syncs.Add(1) == 1 {
			close(begun)
			<-proceed
		}
		return nil
	})
	d := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "disk.img"), Size: 1 << 20, BlockSize: 4096})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := d.flush(); err != nil {
			t.Error(err)
		}
	})
	<-begun
	const n = 10
	var started sync.WaitGroup
	started.Add(n)
	for range n {
		wg.Go(func() {
			started.Done()
			if err := d.flush(); err != nil {
				t.Error(err)
			}
		})
	}
	started.Wait()
	close(proceed)
	wg.Wait()
	if got := syncs.Load(); got < 2 || got > 1+n {
		t.Errorf("%d calls of fdatasync for %d flushes", got, n+1)
	}
	mustClose(t, d)
}

// TestTruncatedFile: what is behind the end of a file that somebody truncated is an error and never a short success.
func TestTruncatedFile(t *testing.T) {
	for _, buffered := range []bool{false, true} {
		cfg := Config{Path: filepath.Join(t.TempDir(), "disk.img"), Size: 1 << 20, BlockSize: 4096, Buffered: buffered}
		d := mustOpen(t, cfg)
		c := backendtest.NewClient(t, d, 1<<20)
		if err := os.Truncate(cfg.Path, 512<<10); err != nil {
			t.Fatal(err)
		}
		expect(t, c, c.Read(0, c.Memory(0, 512<<10)), nil)
		expect(t, c, c.Read(508<<10, c.Memory(0, 8192)), backend.ErrIO)
		expect(t, c, c.Read(768<<10, c.Memory(0, 8192)), backend.ErrIO)
		expect(t, c, c.Read(508<<10, c.Memory(72, 8192)), backend.ErrIO)
		c.Close()
		mustClose(t, d)
	}
}

// TestNoSpace: a write that the file system has no room for says so, and is not the end: reads and later writes go on.
func TestNoSpace(t *testing.T) {
	// A limit on the file size is what every machine has; the kernel answers EFBIG, and SIGXFSZ, which Go ignores.
	cfg := Config{Path: filepath.Join(t.TempDir(), "disk.img"), Size: 1 << 20, BlockSize: 4096}
	d := mustOpen(t, cfg)
	c := backendtest.NewClient(t, d, 8192)
	for errno, want := range map[unix.Errno]error{
		unix.ENOSPC: backend.ErrNoSpace, unix.EDQUOT: backend.ErrNoSpace, unix.EFBIG: backend.ErrNoSpace, unix.EIO: backend.ErrIO,
		unix.EROFS: backend.ErrReadOnly, unix.ENODEV: backend.ErrGone, unix.EOPNOTSUPP: backend.ErrUnsupported, unix.EINVAL: backend.ErrIO,
	} {
		err := d.failure(backend.OpWrite, 8192, errno)
		if !errors.Is(err, want) || !errors.Is(err, errno) || !strings.Contains(err.Error(), cfg.Path+": write at 8192: ") {
			t.Errorf("%v: %v", errno, err)
		}
	}
	d.syncFailed(d.failure(backend.OpWrite, 0, unix.ENOSPC))
	expect(t, c, c.Write(0, c.Memory(0, 4096)), nil)
	c.Close()
	mustClose(t, d)
}
