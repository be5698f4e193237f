package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
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

// TestTLSKeyCounts: a key counts while its host has it.
func TestTLSKeyCounts(t *testing.T) {
	var e Engine
	k, other := testutil.Value(auth.NewTLSKey(auth.SHA256))(t), new(auth.TLSKey)
	e.tlsKeys.Store("host", &config.Authentication{TLSKey: k})
	testutil.True(t, e.TLSKeyCounts("host", k), "the key does not count")
	testutil.True(t, !e.TLSKeyCounts("host", other) && !e.TLSKeyCounts("x", k), "others count")
}
