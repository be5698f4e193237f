package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/backend"
)

// TestProbeBlock: what cannot be exported is refused before it is opened, with who uses it.
func TestProbeBlock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/dev/no-such-disk": "does not exist",
		"/dev/null":         "not a block device", file: "is a regular file",
		"/": "not a block device",
	} {
		expectError(t, path, probeBlock(path, false), want)
	}
	for path, want := range map[string]string{
		"/dev/ng99n9": "no such device",
		"/dev/null":   "not a namespace of an NVMe drive", file: "is a regular file",
	} {
		expectError(t, path, probeNVMe(path, false), want)
	}
	var st unix.Stat_t
	if err := unix.Stat("/", &st); err != nil {
		t.Fatal(err)
	}
	if unix.Major(st.Dev) == 0 {
		t.Skip("the root file system is on no device")
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil ||
		!strings.Contains(string(mounts),
			fmt.Sprintf(" %d:%d / / ", unix.Major(st.Dev), unix.Minor(st.Dev))) {
		t.Skip("the mount of the root file system is out of sight, as in a chroot")
	}
	if uses := blockUses(st.Dev); len(uses) == 0 || !strings.HasPrefix(uses[0], "/") {
		t.Errorf("the device of the root file system is used by %q", uses)
	}
}

func expectError(t *testing.T, path string, r backend.Report, want string) {
	t.Helper()
	if len(r.Errors) != 1 || !strings.Contains(r.Errors[0].What, want) || r.Errors[0].Hint == "" {
		t.Errorf("%s: %+v, want %q", path, r, want)
	}
}
