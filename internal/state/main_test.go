package state

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// unprivileged is set in a process started by asNobody, to its directory.
const unprivileged = "NVMF_TEST_UNPRIVILEGED"

func TestMain(m *testing.M) { testutil.Main(m) }

// asNobody runs the test again as a user without files, with a directory that others may reach, and
// returns "": the caller must return. In the new process it returns the directory.
func asNobody(t *testing.T, prepare func(dir string)) (dir string) {
	t.Helper()
	if dir := os.Getenv(unprivileged); dir != "" {
		return dir
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be somebody else")
	}
	dir = t.TempDir()
	testutil.Must(t, os.Chmod(filepath.Dir(dir), 0o755))
	prepare(dir)
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), unprivileged+"="+dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	testutil.True(t, err == nil, "%v:\n%s", err, out)
	return ""
}

// opened opens a directory until the end of the test.
func opened(t *testing.T, dir string) *Store {
	t.Helper()
	s := testutil.Value(Open(dir))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// reopened opens a directory again, as after a restart.
func reopened(t *testing.T, s *Store) *Store {
	t.Helper()
	testutil.Must(t, s.Close())
	return opened(t, s.path)
}

func must(t *testing.T, err error) {
	t.Helper()
	testutil.Must(t, err)
}
