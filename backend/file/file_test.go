package file

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/backendtest"
)

func TestMain(m *testing.M) {
	before := openFiles()
	code := m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Println(err)
		code = 1
	}
	if after := openFiles(); after > before {
		fmt.Printf("%d descriptors leaked\n", after-before)
		code = 1
	}
	os.Exit(code)
}

func openFiles() int {
	// The first regular file opens the runtime's own poller for good.
	f, err := os.Open("/proc/self/stat")
	if err == nil {
		_ = f.Close()
	}
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(list)
}

func mustOpen(tb testing.TB, cfg Config) *device {
	tb.Helper()
	dev, err := Open(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return dev.(*device)
}

func mustClose(tb testing.TB, dev backend.Device) {
	tb.Helper()
	if err := dev.Close(); err != nil {
		tb.Error(err)
	}
}

// shm is a directory on tmpfs, which knows neither ZERO_RANGE nor, before Linux 6.6, O_DIRECT.
func shm(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "file-test-")
	if err != nil {
		t.Skipf("no directory on tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestConformance(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  Config
		dir  func(t *testing.T) string
		with func(d *device)
	}{
		"direct 4096":       {cfg: Config{BlockSize: 4096}},
		"direct 512":        {cfg: Config{BlockSize: 512}},
		"buffered":          {cfg: Config{BlockSize: 512, Buffered: true, Workers: 3}},
		"buffered 64K":      {cfg: Config{BlockSize: 64 << 10, Buffered: true}},
		"one worker":        {cfg: Config{BlockSize: 4096, Workers: 1}},
		"tmpfs":             {cfg: Config{BlockSize: 4096}, dir: shm},
		"nothing supported": {cfg: Config{BlockSize: 4096}, with: func(d *device) { d.noZeroRange.Store(true); d.info.Discard, d.info.DiscardZeroes = false, false }},
	} {
		t.Run(name, func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T) backend.Device {
				dir := t.TempDir()
				if tc.dir != nil {
					dir = tc.dir(t)
				}
				cfg := tc.cfg
				cfg.Path = filepath.Join(dir, "disk.img")
				cfg.Size = backendtest.MinSize
				d := mustOpen(t, cfg)
				if tc.with != nil {
					tc.with(d)
				}
				return d
			}, backendtest.Options{})
		})
	}
}

// TestDirect: where the kernel says that O_DIRECT works it is used, and never when the block size does not fit.
func TestDirect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	for _, tc := range []struct {
		cfg  Config
		want bool
	}{
		{Config{BlockSize: 4096}, true},
		{Config{BlockSize: 4096, Buffered: true}, false},
	} {
		tc.cfg.Path, tc.cfg.Size = path, 1<<20
		d := mustOpen(t, tc.cfg)
		flags, err := unix.FcntlInt(uintptr(d.fd), unix.F_GETFL, 0)
		if err != nil {
			t.Fatal(err)
		}
		var stx unix.Statx_t
		if err := unix.Statx(d.fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &stx); err != nil {
			t.Fatal(err)
		}
		if stx.Dio_offset_align == 0 || stx.Dio_offset_align > 4096 {
			tc.want = false
		}
		if direct := flags&unix.O_DIRECT != 0; direct != tc.want || direct != (d.direct.offset != 0) {
			t.Errorf("%+v: O_DIRECT is %v, want %v", tc.cfg, direct, tc.want)
		}
		mustClose(t, d)
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
	if st, err := os.Stat(cfg.Path); err != nil || st.Size() != cfg.Size || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}

	cfg.Size = 0 // the file's
	cfg.ReadOnly = true
	d, other := mustOpen(t, cfg), mustOpen(t, cfg) // readers share
	if info := d.Info(); info.Size != 1<<20 || !info.ReadOnly || info.VolatileCache || info.Discard || !filepath.IsAbs(info.Identity) {
		t.Errorf("%+v", info)
	}
	c = backendtest.NewClient(t, d, 8192)
	r := c.Memory(4096, 4096)
	c.MustDo(c.Read(1<<20-4096, r), &backend.IO{Op: backend.OpFlush})
	if !strings.HasPrefix(string(r), "persistent") {
		t.Errorf("read %q", r[:16])
	}
	for _, op := range []backend.Op{backend.OpWrite, backend.OpWriteZeroes, backend.OpDiscard} {
		expect(t, c, &backend.IO{Op: op, Len: 4096, Segs: c.Segs(r)}, backend.ErrReadOnly)
	}
	c.Close()
	mustClose(t, d)
	mustClose(t, other)
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, size int64) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	busy := mustOpen(t, Config{Path: file("busy", 1<<20), BlockSize: 512})
	defer mustClose(t, busy)
	for _, tc := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "no path"},
		{Config{Path: dir}, "is a directory"},
		{Config{Path: fifo}, "not a regular file"},
		{Config{Path: "/dev/null"}, "not a regular file"},
		{Config{Path: filepath.Join(dir, "new")}, "cannot create it: size 0"},
		{Config{Path: filepath.Join(dir, "new"), Size: 1000}, "cannot create it: size 1000: must be a multiple of the block size 512"},
		{Config{Path: filepath.Join(dir, "new"), Size: 1 << 20, ReadOnly: true}, "no such file"},
		{Config{Path: filepath.Join(dir, "new"), Size: 1 << 62}, "set the size to 4611686018427387904 bytes: file too large"},
		{Config{Path: filepath.Join(dir, "no", "such", "dir"), Size: 512}, "create it: no such file or directory"},
		{Config{Path: filepath.Join(file("f", 512), "x"), Size: 512}, "not a directory"},
		{Config{Path: file("larger", 2<<20), Size: 1 << 20}, "has 2097152 bytes but 1048576 are configured"},
		{Config{Path: file("odd", 1000)}, "size 1000: must be a multiple of the block size 512"},
		{Config{Path: file("empty", 0)}, "is empty"},
		{Config{Path: file("empty", 0), Size: 512, ReadOnly: true}, "is empty"},
		{Config{Path: busy.cfg.Path}, "is in use by another namespace or process"},
		{Config{Path: busy.cfg.Path, ReadOnly: true}, "is in use by another namespace or process"},
		{Config{Path: file("w", 512), Workers: -1}, "-1 workers"},
	} {
		tc.cfg.BlockSize = 512
		dev, err := Open(tc.cfg)
		if err == nil {
			mustClose(t, dev)
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "file device "+tc.cfg.Path) {
			t.Errorf("%+v: %v, want %q", tc.cfg, err, tc.want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); !os.IsNotExist(err) {
		t.Error("a file is left that could not be made")
	}
}

// TestEmptyFileIsSized: an empty file, which a crash while creating it leaves behind, is as good as none.
func TestEmptyFileIsSized(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := mustOpen(t, Config{Path: path, Size: 1 << 20, BlockSize: 512})
	if d.Info().Size != 1<<20 {
		t.Errorf("size %d", d.Info().Size)
	}
	mustClose(t, d)
}
