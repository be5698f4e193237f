package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/backendtest"
	"github.com/nvmf-target/nvmf-target/backend/disk"
)

func expect(t *testing.T, c *backendtest.Client, io *backend.IO, want error) {
	t.Helper()
	if err := c.Do(io); !errors.Is(err, want) || (err == nil) != (want == nil) {
		t.Errorf("%v: %v, want %v", io.Op, err, want)
	}
}

// TestTruncatedFile: what is behind the end of a file that somebody truncated is an error and never a short success.
func TestTruncatedFile(t *testing.T) {
	for i := range 4 {
		cfg := Config{Path: filepath.Join(t.TempDir(), "disk.img"), Size: 1 << 20, BlockSize: 4096, Buffered: i%2 == 0}
		if i < 2 {
			cfg.Engine.Name = disk.Threads
		}
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
