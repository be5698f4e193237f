package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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

// TestErrno: the errors of system calls are told apart, and say what happened where.
func TestErrno(t *testing.T) {
	d := &device{cfg: Config{Path: "/some/disk.img"}}
	for errno, want := range map[syscall.Errno]error{
		unix.ENOSPC: backend.ErrNoSpace, unix.EDQUOT: backend.ErrNoSpace, unix.EFBIG: backend.ErrNoSpace, unix.EIO: backend.ErrIO,
		unix.EROFS: backend.ErrReadOnly, unix.ENODEV: backend.ErrGone, unix.EOPNOTSUPP: backend.ErrUnsupported, unix.EINVAL: backend.ErrIO,
	} {
		err := d.failure(backend.OpWrite, 8192, errno)
		if !errors.Is(err, want) || !errors.Is(err, errno) || !strings.Contains(err.Error(), "/some/disk.img: write at 8192: ") {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

// TestFullFileSystem: a write that there is no room for says so, and is not the end: what was there is there, and once there is
// room again writes succeed. A file on a read-only file system is not opened for writing.
func TestFullFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("no small file system to fill: mounting tmpfs needs CAP_SYS_ADMIN: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	cfg := Config{Path: filepath.Join(dir, "disk.img"), Size: 1 << 20, BlockSize: 4096}
	d := mustOpen(t, cfg)
	c := backendtest.NewClient(t, d, 1<<20)
	b := c.Memory(0, 128<<10)
	c.MustDo(c.Write(0, b))
	whole := c.Write(0, c.Memory(0, 1<<20))
	whole.Flags = backend.FUA
	expect(t, c, whole, backend.ErrNoSpace)
	expect(t, c, &backend.IO{Op: backend.OpWriteZeroes, Len: 1 << 20}, backend.ErrNoSpace)
	expect(t, c, c.Read(0, b), nil)
	expect(t, c, &backend.IO{Op: backend.OpFlush}, nil)
	expect(t, c, &backend.IO{Op: backend.OpDiscard, Len: 1 << 20}, nil)
	expect(t, c, c.Write(512<<10, b), nil)
	c.Close()
	mustClose(t, d)

	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(cfg); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "make the namespace read-only") {
		t.Errorf("opened for writing on a read-only file system: %v", err)
	}
	cfg.ReadOnly = true
	mustClose(t, mustOpen(t, cfg))
	cfg.Path, cfg.ReadOnly = filepath.Join(dir, "new"), false
	if _, err := Open(cfg); !errors.Is(err, unix.EROFS) {
		t.Errorf("created on a read-only file system: %v", err)
	}
}
