package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func expect(t *testing.T, c *backendtest.Client, io *backend.IO, want error) {
	t.Helper()
	if err := c.Do(io); !errors.Is(err, want) || (err == nil) != (want == nil) {
		t.Errorf("%v: %v, want %v", io.Op, err, want)
	}
}

// variants runs fn with O_DIRECT and with the page cache, with both engines.
func variants(t *testing.T, fn func(t *testing.T, cfg Config)) {
	for i := range 4 {
		cfg := Config{
			Path: filepath.Join(t.TempDir(), "disk.img"), Size: 1 << 20, BlockSize: 4096,
			Buffered: i%2 == 0,
		}
		if i < 2 {
			cfg.Engine.Name = disk.Threads
		}
		t.Run(fmt.Sprintf("buffered=%v,engine=%s", cfg.Buffered, cfg.Engine.Name),
			func(t *testing.T) { fn(t, cfg) })
	}
}

// TestTruncatedFile: ranges beyond the end of a truncated file are out of range and never a short
// success, even before the disk has noticed.
func TestTruncatedFile(t *testing.T) {
	variants(t, func(t *testing.T, cfg Config) {
		d := mustOpen(t, cfg)
		c := backendtest.NewClient(t, d, 1<<20)
		testutil.Must(t, os.Truncate(cfg.Path, 512<<10))
		expect(t, c, c.Read(0, c.Memory(0, 512<<10)), nil)
		expect(t, c, c.Read(508<<10, c.Memory(0, 8192)), backend.ErrOutOfRange)
		expect(t, c, c.Read(768<<10, c.Memory(0, 8192)), backend.ErrOutOfRange)
		expect(t, c, c.Read(508<<10, c.Memory(72, 8192)), backend.ErrOutOfRange)
		c.Close()
		mustClose(t, d)
	})
}

// checker is a disk that checks its size once a second and on request.
type checker interface{ CheckSoon() }

// TestResize: notifications come when a file grows, shrinks, becomes empty and has content again.
func TestResize(t *testing.T) {
	variants(t, func(t *testing.T, cfg Config) {
		d := mustOpen(t, cfg)
		c := backendtest.NewClient(t, d, 64<<10)
		notified := make(chan backend.Info, 10)
		d.(backend.Changer).Notify(func() { notified <- d.Info() })
		b := c.Memory(0, 64<<10)
		for _, size := range []int64{2 << 20, 512 << 10, 512<<10 + 100, 0, 4096, 1 << 20} {
			before := d.Info()
			testutil.Must(t, os.Truncate(cfg.Path, size))
			whole := size &^ 4095
			if whole == before.Size {
				expect(t, c, c.Write(whole, b), backend.ErrOutOfRange)
				continue
			}
			want := before
			if want.Offline = whole == 0; whole > 0 {
				want.Size = whole
			}
			d.(checker).CheckSoon()
			testutil.MustEqual(t, testutil.Receive(t, "a notification", notified), want,
				"with %d bytes: notified of", size)
			switch {
			case want.Offline:
				expect(t, c, c.Read(0, b), backend.ErrOffline)
				expect(t, c, &backend.IO{Op: backend.OpFlush}, backend.ErrOffline)
				continue
			case whole >= 64<<10:
				expect(t, c, c.Write(whole-64<<10, b), nil)
			}
			expect(t, c, c.Write(whole, b), backend.ErrOutOfRange)
			expect(t, c, &backend.IO{Op: backend.OpFlush}, nil)
			if st, err := os.Stat(cfg.Path); err != nil || st.Size() != size {
				t.Errorf("the file has %d bytes, want %d (%v)", st.Size(), size, err)
			}
		}
		d.(backend.Changer).Notify(nil)
		c.Close()
		mustClose(t, d)
		testutil.Equal(t, len(notified), 0, "notified too often")
	})
}

// TestFullFileSystem: a write without space fails for that reason, earlier data stays, and writes
// succeed once there is space again. A file on a read-only file system is not opened for writing.
// Probe warns of the first and reports the second.
func TestFullFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("no small file system to fill: mounting tmpfs needs CAP_SYS_ADMIN: %v", err)
	}
	defer func() { testutil.Check(t, unix.Unmount(dir, 0)) }()
	cfg := Config{Path: filepath.Join(dir, "disk.img"), Size: 1 << 20, BlockSize: 4096}
	cfg.Preallocate = true
	if r := Probe(cfg); len(r.Errors) != 1 || !strings.Contains(r.Errors[0].What,
		"needs 1048576 more bytes, and its file system has ") {
		t.Errorf("without the space to preallocate: %+v", r)
	}
	cfg.Preallocate = false
	if r := Probe(cfg); len(r.Errors) != 0 || len(r.Warnings) != 1 ||
		!strings.Contains(r.Warnings[0].What, "may grow by 1048576 bytes") {
		t.Errorf("larger than the file system: %+v", r)
	}
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

	testutil.Must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	readOnly := func(what string) {
		t.Helper()
		_, err := Open(cfg)
		testutil.True(t, errors.Is(err, unix.EROFS) && strings.Contains(err.Error(),
			"ReadWritePaths=") && strings.Contains(err.Error(), "set read_only: true"),
			"%s on a read-only file system: %v", what, err)
		r := Probe(cfg)
		testutil.True(t, len(r.Errors) == 1 && strings.Contains(r.Errors[0].Hint,
			"ReadWritePaths="), "%s on a read-only file system: %+v", what, r)
	}
	readOnly("opened for writing")
	cfg.ReadOnly = true
	r := Probe(cfg)
	testutil.True(t, len(r.Errors)+len(r.Warnings) == 0, "read-only: %+v", r)
	mustClose(t, mustOpen(t, cfg))
	cfg.Path, cfg.ReadOnly = filepath.Join(dir, "new"), false
	readOnly("created")
}
