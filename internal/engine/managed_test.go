package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// TestLinksOfDevices: a link below /dev may lead to devices elsewhere there, and to nothing else.
func TestLinksOfDevices(t *testing.T) {
	dir := testutil.Value(os.MkdirTemp("/dev/shm", "nvmf-target-"))(t)
	defer os.RemoveAll(dir)
	for end, want := range map[string]bool{
		"/dev/null": true, "/dev/null/x": false, "/dev/shm": false, "/etc/passwd": false,
		"/x": false, dir: true,
	} {
		link := filepath.Join(dir, "link")
		testutil.Must(t, os.Symlink(end, link))
		testutil.Equal(t, leadsTo(link, []string{dir}), want, "a link to %s", end)
		testutil.Must(t, os.Remove(link))
	}
}
