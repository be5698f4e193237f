package file

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
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
	return testutil.Value(Open(cfg))(tb)
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
	testutil.True(t, strings.HasPrefix(string(r), "persistent"), "read %q", r[:16])
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

// TestProbe: Probe reports each error of Open beforehand and leaves nothing behind.
func TestProbe(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, size int64) string {
		t.Helper()
		path := filepath.Join(dir, name)
		testutil.Must(t, os.WriteFile(path, make([]byte, size), 0o600))
		return path
	}
	busy := file("busy", 1<<20)
	d := mustOpen(t, Config{Path: busy, BlockSize: 512})
	defer mustClose(t, d)
	missing := filepath.Join(dir, "new")
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	testutil.Must(t, errors.Join(os.Symlink("nothing", link), unix.Mkfifo(fifo, 0o600)))
	for _, tc := range []struct {
		cfg  Config
		want string // the problem; "" if there is none
	}{
		{Config{Path: missing, Size: 1 << 20}, ""},
		{Config{Path: file("whole", 1<<20)}, ""},
		{Config{Path: file("empty", 0), Size: 1 << 20}, ""},
		{Config{}, "no path"},
		{Config{Path: dir}, "is a directory"},
		{Config{Path: os.DevNull}, "is a character device, not a regular file"},
		{Config{Path: fifo}, "is a FIFO, not a regular file"},
		{Config{Path: link, Size: 1 << 20}, "is a symbolic link to nothing, which does not exist"},
		{Config{Path: busy + "/x", Size: 1 << 20}, "cannot be reached: not a directory"},
		{Config{Path: missing}, "no size is given"},
		{
			Config{Path: missing, Size: 1 << 20, ReadOnly: true},
			"a read-only namespace is not created",
		},
		{Config{Path: missing, Size: 1000}, "size 1000: must be a multiple"},
		{Config{Path: filepath.Join(dir, "no", "new"), Size: 512}, "does not exist"},
		{Config{Path: "/proc/nvmf-target", Size: 1 << 20}, "is the kernel's"},
		{Config{Path: "/proc/version", Size: 1 << 20}, "a file of the kernel"},
		{Config{Path: "/sys/power/state"}, "a file of the kernel"},
		{Config{Path: file("odd", 1000)}, "size 1000: must be a multiple"},
		{Config{Path: file("small", 1<<20), Size: 2 << 20}, "2097152 are configured"},
		{Config{Path: busy}, "is in use by another namespace or process"},
		{Config{Path: missing, Size: 1 << 20, Engine: disk.Engine{Name: "aio"}}, `engine "aio"`},
	} {
		tc.cfg.BlockSize = 512
		if strings.HasPrefix(tc.cfg.Path, "/sys/") {
			if _, err := os.Stat(tc.cfg.Path); err != nil {
				t.Logf("not tried: %v", err)
				continue
			}
		}
		r := Probe(tc.cfg)
		if tc.want == "" && len(r.Errors) > 0 || tc.want != "" && (len(r.Errors) != 1 ||
			!strings.Contains(r.Errors[0].What, tc.want) || r.Errors[0].Hint == "") {
			t.Errorf("%+v: %+v, want %q", tc.cfg, r, tc.want)
		}
		if _, err := os.Stat(missing); !os.IsNotExist(err) {
			t.Fatalf("%+v: the probe has created the file", tc.cfg)
		}
		d, err := Open(tc.cfg)
		testutil.True(t, (err == nil) == (tc.want == ""), "%+v: probed as %q, opened: %v", tc.cfg,
			tc.want, err)
		if err == nil {
			mustClose(t, d)
		}
		_ = os.Remove(missing)
	}
}

// TestProbeHuge: a file larger than the file system allows is an error, a file larger than its free
// space a warning.
func TestProbeHuge(t *testing.T) {
	for _, dir := range []string{t.TempDir(), shm(t)} {
		cfg := Config{Path: filepath.Join(dir, "huge"), Size: 100 << 40, BlockSize: 4096}
		r := Probe(cfg)
		d, err := Open(cfg)
		if err == nil {
			mustClose(t, d)
		}
		testutil.True(t, len(r.Errors)+len(r.Warnings) == 1 && (err == nil) == (len(r.Errors) == 0),
			"%s: %+v, opened: %v", dir, r, err)
	}
}

// TestProbeHeld: a file that another process has locked is an error that names the process, or a
// warning if the process is another instance of this program. A file that is written without a lock
// is a warning.
func TestProbeHeld(t *testing.T) {
	if _, err := exec.LookPath("flock"); err != nil {
		t.Skip("flock(1) is missing")
	}
	self := testutil.Value(os.ReadFile("/proc/self/comm"))(t)
	dir := t.TempDir()
	same := filepath.Join(dir, strings.TrimSpace(string(self)))
	testutil.Must(t, os.Symlink("/bin/sh", same))
	for _, tc := range []struct {
		program, lock    string
		errors, warnings string
	}{
		{"/bin/sh", "flock 3", "is in use: process %d (sh)", ""},
		{same, "flock 3", "", "is in use by process %d (" + filepath.Base(same) + ")"},
		{"/bin/sh", "true", "", "is in use by process %d (sh)"},
	} {
		path := filepath.Join(dir, "disk.img")
		testutil.Must(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
		holder := exec.Command(tc.program, "-c",
			`exec 3<>"$0"; `+tc.lock+`; echo ready; read line; true`, path)
		in, err1 := holder.StdinPipe()
		out, err2 := holder.StdoutPipe()
		testutil.MustTrue(t, err1 == nil && err2 == nil, "%v %v", err1, err2)
		testutil.Must(t, holder.Start())
		testutil.Check(t, testutil.Err(out.Read(make([]byte, 6))))
		text := func(list []backend.Problem) (s string) {
			for _, p := range list {
				s += p.What
			}
			return s
		}
		want := func(s string) string {
			if s == "" {
				return ""
			}
			return fmt.Sprintf(s, holder.Process.Pid)
		}
		r := Probe(Config{Path: path, BlockSize: 512})
		testutil.True(t, text(r.Errors) == want(tc.errors) && text(r.Warnings) == want(tc.warnings),
			"%+v: %+v", tc, r)
		_ = in.Close()
		testutil.Check(t, holder.Wait())
	}
}

// TestResizeFile: a file keeps its content and stays sparse or fully allocated.
func TestResizeFile(t *testing.T) {
	for _, full := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "f")
		cfg := Config{Path: path, BlockSize: 512, Preallocate: full}
		testutil.Must(t, os.WriteFile(path, make([]byte, 64<<10), 0o600))
		for _, size := range []int64{8 << 20, 32 << 10, 1 << 20} {
			testutil.Must(t, Resize(cfg, size))
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil || st.Size != size {
				t.Fatalf("%v, %d bytes, want %d", err, st.Size, size)
			}
			if allocated := st.Blocks * 512; size > 64<<10 && (allocated >= size) != full {
				t.Errorf("preallocate %v: %d of %d bytes have space", full, allocated, size)
			}
		}
		for _, size := range []int64{0, 1000, 1 << 62} {
			testutil.True(t, Resize(cfg, size) != nil, "resized to %d", size)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != 1<<20 {
			t.Errorf("%v, a failure left %d bytes", err, info.Size())
		}
		d := testutil.Value(Open(cfg))(t)
		testutil.Is(t, Resize(cfg, 2<<20), errInUse, "a file that is open")
		testutil.Check(t, d.Close())
	}
	testutil.True(t, Resize(Config{Path: t.TempDir() + "/none", BlockSize: 512, Size: 512},
		1024) != nil, "a file that does not exist")
}

// TestShrinkWithoutSpace: a file with holes becomes smaller when there is no space to fill them.
func TestShrinkWithoutSpace(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs a file system of its own: %v", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	path := filepath.Join(dir, "disk")
	testutil.Must(t, errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 2<<20)))
	cfg := Config{Path: path, BlockSize: 512, Preallocate: true}
	testutil.Check(t, Resize(cfg, 1<<20))
	testutil.Is(t, Resize(cfg, 3<<20), unix.ENOSPC, "")
	info, err := os.Stat(path)
	testutil.True(t, err == nil && info.Size() == 1<<20, "%v, %v", info, err)
}

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
		c := backendtest.Use(t, d, 1<<20)
		testutil.Must(t, os.Truncate(cfg.Path, 512<<10))
		expect(t, c, c.Read(0, c.Memory(0, 512<<10)), nil)
		expect(t, c, c.Read(508<<10, c.Memory(0, 8192)), backend.ErrOutOfRange)
		expect(t, c, c.Read(768<<10, c.Memory(0, 8192)), backend.ErrOutOfRange)
		expect(t, c, c.Read(508<<10, c.Memory(72, 8192)), backend.ErrOutOfRange)
	})
}

// checker is a disk that checks its size once a second and on request.
type checker interface{ CheckNow() }

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
			d.(checker).CheckNow()
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
