package state

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend/marks"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// ownMounts is set in a process with its own mounts.
const ownMounts = "NVMF_TEST_OWN_MOUNTS"

// withMounts reports whether this process has its own mounts. If not, it runs the test in a process
// that has, and the caller must return.
func withMounts(t *testing.T) bool {
	t.Helper()
	if os.Getenv(ownMounts) != "" {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), ownMounts+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, os.ErrPermission) || strings.Contains(string(out), "--- SKIP"):
		t.Skipf("needs mounts of its own: %v: %s", err, out)
	case err != nil:
		t.Errorf("%v:\n%s", err, out)
	}
	return false
}

// TestFileSystem: on a file system that is full, becomes read-only, or is hidden by another mount,
// changes fail and earlier promises stay. A start fails as well and reports why.
func TestFileSystem(t *testing.T) {
	if !withMounts(t) {
		return
	}
	top := t.TempDir()
	mount := func(flags uintptr, options string) {
		t.Helper()
		if err := unix.Mount("tmpfs", top, "tmpfs", flags, options); err != nil {
			t.Skipf("mount: %v", err)
		}
	}
	mount(0, "size=128k")
	defer func() { _ = unix.Unmount(top, unix.MNT_DETACH) }()
	s := opened(t, filepath.Join(top, "state"))
	one := &reservation.State{Generation: 1, PTPL: true}
	promise := func() {
		t.Helper()
		must(t, s.Protection.SetProtected("a", 1, true))
		must(t, s.Reservations.Save("a", 1, one))
		testutil.Value(s.Ports([]string{"a"}))(t)
	}
	refuse := func(want error) {
		t.Helper()
		_, err := s.Ports([]string{"b"})
		for _, err := range []error{
			err, s.Protection.SetProtected("a", 2, true), s.Reservations.Save("a", 1, nil),
			s.Uncorrectable.Save("a", 1, &marks.Kept{Identity: "disk"}),
		} {
			testutil.True(t, err != nil && (want == nil || errors.Is(err, want)), "got %v, want %v",
				err, want)
		}
	}
	starts := func(want string) {
		t.Helper()
		must(t, s.Close())
		again, err := Open(s.path)
		if err == nil {
			_, err = again.NextGeneration()
			must(t, again.Close())
		}
		testutil.Fails(t, err, want, "a start")
	}
	promise()
	filler := filepath.Join(top, "filler")
	_ = os.WriteFile(filler, make([]byte, 1<<20), 0o600) // as much as fits
	testutil.Is(t, testutil.Err(s.Ports([]string{"b"})), unix.ENOSPC, "full")
	err := s.Protection.SetProtected("a", 2, true)
	testutil.True(t, errors.Is(err, unix.ENOSPC) && !s.Protection.Protected("a", 2), "full: %v",
		err)
	starts("Make room on its file system")
	must(t, os.Remove(filler))
	s = opened(t, s.path)
	promise()

	mount(unix.MS_REMOUNT|unix.MS_RDONLY, "")
	refuse(unix.EROFS)
	starts("Make its file system writable")
	mount(unix.MS_REMOUNT, "")
	s = opened(t, s.path)
	testutil.True(t, s.Protection.Protected("a", 1) && !s.Protection.Protected("a", 2) &&
		s.Reservations.Load("a", 1) != nil, "a promise was lost")

	must(t, unix.Mount("tmpfs", s.path, "tmpfs", 0, "size=64k"))
	refuse(nil)
	must(t, unix.Unmount(s.path, 0))
	promise()
	must(t, s.Close())
}
