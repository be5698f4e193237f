package app

import (
	"os"
	"path/filepath"
	"testing"
)

// TestLinksOfDevices: below /dev a link leads to devices elsewhere there, and to nothing else.
func TestLinksOfDevices(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "nvmf-target-")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(dir)
	for end, want := range map[string]bool{
		"/dev/null": true, "/dev/null/x": false, "/dev/shm": false, "/etc/passwd": false,
		"/x": false, dir: true,
	} {
		link := filepath.Join(dir, "link")
		if err := os.Symlink(end, link); err != nil {
			t.Fatal(err)
		}
		if got := leadsTo(link, []string{dir}); got != want {
			t.Errorf("a link to %s: %t", end, got)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
}
