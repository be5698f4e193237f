package file

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/disk"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/uring"
)

func TestMain(m *testing.M) { testutil.Main(m) }

func mustOpen(tb testing.TB, cfg Config) backend.Device {
	tb.Helper()
	dev := testutil.Value(Open(cfg))(tb)
	return dev
}

func mustClose(tb testing.TB, dev backend.Device) {
	tb.Helper()
	testutil.Check(tb, dev.Close())
}

// shm returns a directory on tmpfs, which has neither ZERO_RANGE nor, before Linux 6.6, O_DIRECT.
func shm(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "file-test-")
	if err != nil {
		tb.Skipf("no directory on tmpfs: %v", err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestConformance(t *testing.T) {
	engines := []disk.Engine{{Name: disk.Threads}, {Name: disk.IOUring}}
	if err := uring.Available(); err != nil {
		t.Logf("threads only: %v", err)
		engines = engines[:1]
	}
	for name, tc := range map[string]struct {
		cfg Config
		dir func(tb testing.TB) string
	}{
		"direct 4096":  {cfg: Config{BlockSize: 4096}},
		"direct 512":   {cfg: Config{BlockSize: 512}},
		"buffered":     {cfg: Config{BlockSize: 512, Buffered: true}},
		"buffered 64K": {cfg: Config{BlockSize: 64 << 10, Buffered: true}},
		"preallocated": {cfg: Config{BlockSize: 4096, Preallocate: true}},
		"tmpfs":        {cfg: Config{BlockSize: 4096}, dir: shm},
	} {
		for i, engine := range engines {
			if i > 1 && name != "direct 4096" {
				continue
			}
			t.Run(fmt.Sprintf("%s %+v", name, engine), func(t *testing.T) {
				backendtest.Run(t, func(t *testing.T) backend.Device {
					dir := t.TempDir()
					if tc.dir != nil {
						dir = tc.dir(t)
					}
					cfg := tc.cfg
					cfg.Path, cfg.Size, cfg.Engine = filepath.Join(dir, "disk.img"),
						backendtest.MinSize, engine
					return mustOpen(t, cfg)
				}, backendtest.Options{})
			})
		}
	}
}

// TestDirect: O_DIRECT is used where the kernel reports that it works, but not if the block size
// does not fit or the page cache is configured. There is a warning if it cannot be used.
func TestDirect(t *testing.T) {
	f := testutil.Value(os.Create(filepath.Join(t.TempDir(), "disk.img")))(t)
	defer func() { _ = f.Close() }()
	var stx unix.Statx_t
	testutil.Must(t, unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &stx))
	unit := int(stx.Dio_offset_align)
	if stx.Mask&unix.STATX_DIOALIGN == 0 { // not reported, as on tmpfs
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFL, unix.O_DIRECT); err == nil {
			unit = 4096
		}
	}
	possible := func(blockSize int) bool { return unit != 0 && blockSize%unit == 0 }
	for _, tc := range []struct {
		cfg  Config
		want bool
	}{
		{Config{BlockSize: 4096}, possible(4096)},
		{Config{BlockSize: 4096, Buffered: true}, false},
		{Config{BlockSize: 256}, possible(256)},
	} {
		testutil.Value(unix.FcntlInt(f.Fd(), unix.F_SETFL, 0))(t)
		var log bytes.Buffer
		tc.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		d := disk.Config{FD: int(f.Fd()), Info: backend.Info{BlockSize: tc.cfg.BlockSize}}
		testutil.Must(t, describe(&tc.cfg, &d))
		flags := testutil.Value(unix.FcntlInt(f.Fd(), unix.F_GETFL, 0))(t)
		direct := flags&unix.O_DIRECT != 0
		testutil.True(t, direct == tc.want && direct == (d.Offset != 0) &&
			direct == (d.Memory != 0), "%+v: O_DIRECT is %v, want %v", tc.cfg, direct, tc.want)
		testutil.True(t, strings.Contains(log.String(),
			"page cache") == (!tc.want && !tc.cfg.Buffered), "%+v: log %q", tc.cfg, log.String())
	}
}

// TestPreallocate: the space of a file is allocated from the start and stays, or is allocated by
// writes and freed by discards. A sparse file opened with Preallocate gets the rest.
func TestPreallocate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	allocated := func() int64 {
		var st unix.Stat_t
		testutil.Must(t, unix.Stat(path, &st))
		return st.Blocks << 9
	}
	const size = 4 << 20
	for _, full := range []bool{false, true} {
		d := mustOpen(t, Config{Path: path, Size: size, BlockSize: 4096, Preallocate: full})
		got := allocated()
		testutil.True(t, full == (got >= size), "full %v: %d bytes are allocated", full, got)
		c := backendtest.NewClient(t, d, 1<<20)
		c.MustDo(c.Write(0, c.Memory(0, 1<<20)))
		before := allocated()
		if n, _, err := d.(backend.SpaceReporter).Space(); err != nil || n != min(before, size) ||
			d.Info().Thin == full {
			t.Errorf("full %v: %d bytes in use (%v), allocated are %d; thin %v", full, n, err,
				before, d.Info().Thin)
		}
		c.MustDo(&backend.IO{Op: backend.OpWriteZeroes, Flags: backend.Unmap, Len: 1 << 19})
		if d.Info().Discard {
			c.MustDo(&backend.IO{Op: backend.OpDiscard, Off: 1 << 19, Len: 1 << 19})
		}
		freed := before - allocated()
		if full && (freed != 0 || d.Info().Discard) || !full && d.Info().Discard && freed != 1<<20 {
			t.Errorf("full %v: %d bytes of %d came back; discard %v", full, freed, before,
				d.Info().Discard)
		}
		c.Close()
		mustClose(t, d)
	}
	cfg := Config{
		Path: filepath.Join(t.TempDir(), "disk.img"), Size: 1 << 50, BlockSize: 4096,
		Preallocate: true,
	}
	if d, err := Open(cfg); err == nil {
		mustClose(t, d)
		t.Error("a petabyte was allocated")
	}
	_, err := os.Stat(cfg.Path)
	testutil.True(t, os.IsNotExist(err), "a file is left that could not be created")
}

// TestSpace: a file reports the space left on its file system.
func TestSpace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	d := mustOpen(t, Config{Path: path, Size: 1 << 20, BlockSize: 4096})
	defer mustClose(t, d)
	var fs unix.Statfs_t
	testutil.Must(t, unix.Statfs(path, &fs))
	total := int64(fs.Blocks) * fs.Frsize
	if _, n, err := d.(backend.SpaceReporter).Space(); err != nil || n <= 0 || n > total {
		t.Errorf("%v: %d bytes are free of %d", err, n, total)
	}
}

func TestReopenKeepsData(t *testing.T) {
	cfg := Config{Path: filepath.Join(t.TempDir(), "disk.img"), Size: 1 << 20, BlockSize: 4096}
	d := mustOpen(t, cfg)
	c := backendtest.NewClient(t, d, 8192)
	b := c.Memory(0, 4096)
	copy(b, "persistent")
	w := c.Write(1<<20-4096, b)
	w.Flags = backend.FUA
	c.MustDo(w)
	c.Close()
	mustClose(t, d)
	st, err := os.Stat(cfg.Path)
	testutil.True(t, err == nil && st.Size() == cfg.Size && st.Mode().Perm() == 0o600, "%v, %v", st,
		err)

	cfg.Size = 0 // the file's
	cfg.ReadOnly = true
	d, other := mustOpen(t, cfg), mustOpen(t, cfg) // readers share
	info := d.Info()
	testutil.True(t, info.Size == 1<<20 && info.ReadOnly && !info.VolatileCache && !info.Discard &&
		filepath.IsAbs(info.Identity), "%+v", info)
	c = backendtest.NewClient(t, d, 8192)
	r := c.Memory(4096, 4096)
	c.MustDo(c.Read(1<<20-4096, r), &backend.IO{Op: backend.OpFlush})
	if !strings.HasPrefix(string(r), "persistent") {
		t.Errorf("read %q", r[:16])
	}
	for _, op := range []backend.Op{backend.OpWrite, backend.OpWriteZeroes, backend.OpDiscard} {
		testutil.Is(t, c.Do(&backend.IO{Op: op, Len: 4096, Segs: c.Segs(r)}), backend.ErrReadOnly,
			"%v", op)
	}
	c.Close()
	mustClose(t, d)
	mustClose(t, other)
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, size int64) string {
		path := filepath.Join(dir, name)
		testutil.Must(t, os.WriteFile(path, nil, 0o600))
		testutil.Must(t, os.Truncate(path, size))
		return path
	}
	fifo := filepath.Join(dir, "fifo")
	testutil.Must(t, unix.Mkfifo(fifo, 0o600))
	busyPath := file("busy", 1<<20)
	busy := mustOpen(t, Config{Path: busyPath, BlockSize: 512})
	defer mustClose(t, busy)
	takesAll := os.Truncate(file("huge", 0), 1<<62) == nil // ext4 does not; xfs and tmpfs do
	for _, tc := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "no path"},
		{Config{Path: dir}, "is a directory"},
		{Config{Path: fifo}, "not a regular file"},
		{Config{Path: "/dev/null"}, "not a regular file"},
		{Config{Path: filepath.Join(dir, "new")}, "no size is given"},
		{
			Config{Path: filepath.Join(dir, "new"), Size: 1000},
			"cannot be created: size 1000: must be a multiple of the block size 512",
		},
		{Config{Path: filepath.Join(dir, "new"), Size: 1 << 20, ReadOnly: true}, "no such file"},
		{
			Config{Path: filepath.Join(dir, "new"), Size: 1 << 62},
			"set the size to 4611686018427387904 bytes: file too large",
		},
		{
			Config{Path: filepath.Join(dir, "no", "such", "dir"), Size: 512},
			"directory " + filepath.Join(dir, "no", "such") + " does not exist",
		},
		{Config{Path: filepath.Join(file("f", 512), "x"), Size: 512}, "not a directory"},
		{Config{Path: "/proc/new", Size: 1 << 20}, "/proc is the kernel's"},
		{Config{Path: "/proc/version", Size: 1 << 20}, "is a file of the kernel"},
		{
			Config{Path: file("smaller", 1<<20), Size: 2 << 20},
			"has 1048576 bytes but 2097152 are configured (grow it with truncate --size, " +
				"or correct or delete size)",
		},
		{Config{Path: file("odd", 1000)}, "size 1000: must be a multiple of the block size 512"},
		{Config{Path: file("empty", 0)}, "is empty"},
		{Config{Path: file("empty", 0), Size: 512, ReadOnly: true}, "is empty"},
		{Config{Path: busyPath}, "is in use by another namespace or process"},
		{Config{Path: busyPath, ReadOnly: true}, "is in use by another namespace or process"},
		{
			Config{Path: file("w", 512), Engine: disk.Engine{Name: "aio"}},
			"engine \"aio\" is not known",
		},
	} {
		if takesAll && tc.cfg.Size == 1<<62 {
			continue
		}
		tc.cfg.BlockSize = 512
		dev, err := Open(tc.cfg)
		if err == nil {
			mustClose(t, dev)
		}
		testutil.True(t, err != nil && strings.Contains(err.Error(), tc.want) &&
			strings.Contains(err.Error(), "file device "+tc.cfg.Path), "%+v: %v, want %q", tc.cfg,
			err, tc.want)
	}
	_, err := os.Stat(filepath.Join(dir, "new"))
	testutil.True(t, os.IsNotExist(err), "a file is left that could not be made")
}

// TestEmptyFileIsSized: an empty file, left by a crash during its creation, is treated as a new
// one.
func TestEmptyFileIsSized(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	testutil.Must(t, os.WriteFile(path, nil, 0o600))
	d := mustOpen(t, Config{Path: path, Size: 1 << 20, BlockSize: 512})
	testutil.Equal(t, d.Info().Size, 1<<20, "size")
	mustClose(t, d)
}

// TestGrown: a file that has grown beyond its configured size is served whole, with a warning, now
// and later. A partial block at its end is not served.
func TestGrown(t *testing.T) {
	cfg := Config{Path: filepath.Join(t.TempDir(), "disk.img"), Size: 1 << 20, BlockSize: 4096}
	mustClose(t, mustOpen(t, cfg))
	for _, size := range []int64{2 << 20, 2<<20 + 100} {
		testutil.Must(t, os.Truncate(cfg.Path, size))
		var log bytes.Buffer
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		want := fmt.Sprintf("has %d bytes, more than the 1048576 that are configured: "+
			"2097152 are served", size)
		r := Probe(cfg)
		testutil.True(t, len(r.Errors) == 0 && len(r.Warnings) == 1 && r.Warnings[0].What == want,
			"%+v", r)
		d := mustOpen(t, cfg)
		testutil.True(t, d.Info().Size == 2<<20 && strings.Count(log.String(), want) == 1,
			"%d bytes; log: %s", d.Info().Size, &log)
		c := backendtest.NewClient(t, d, 4096)
		c.MustDo(c.Write(2<<20-4096, c.Memory(0, 4096)))
		c.Close()
		mustClose(t, d)
	}
}

// TestLockOfClosedFile: a closed file can be opened at once, although a child process that has not
// yet executed its program still has its descriptor.
func TestLockOfClosedFile(t *testing.T) {
	cfg := Config{Path: filepath.Join(t.TempDir(), "disk"), Size: 1 << 20, BlockSize: 4096}
	for range 2 {
		dev := mustOpen(t, cfg)
		inherited := testutil.Value(unix.Dup(descriptorOf(t, cfg.Path)))(t)
		defer func() { testutil.Check(t, unix.Close(inherited)) }()
		mustClose(t, dev)
	}
	mustClose(t, mustOpen(t, cfg))
}

// descriptorOf returns a descriptor of an open file.
func descriptorOf(t *testing.T, path string) int {
	t.Helper()
	for _, e := range testutil.Value(os.ReadDir("/proc/self/fd"))(t) {
		if at, _ := os.Readlink("/proc/self/fd/" + e.Name()); at == path {
			return testutil.Value(strconv.Atoi(e.Name()))(t)
		}
	}
	t.Fatalf("%s is not open", path)
	return -1
}
