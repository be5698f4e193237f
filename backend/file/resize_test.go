package file

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
