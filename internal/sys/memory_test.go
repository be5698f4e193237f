package sys

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestAvailableMemory: the limits of control groups apply, including outer groups.
func TestAvailableMemory(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testutil.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	expect := func(what string, want int64) {
		t.Helper()
		if n, err := availableMemory(root); n != want || err != nil {
			t.Errorf("%s: %d, %v, want %d", what, n, err, want)
		}
	}
	testutil.True(t, testutil.Err(availableMemory(root)) != nil, "no error without /proc/meminfo")
	write("proc/meminfo", "MemTotal:       10 kB\n")
	testutil.True(t, testutil.Err(availableMemory(root)) != nil, "no error without MemAvailable")
	write("proc/meminfo", "MemTotal:       10 kB\nMemFree:         1 kB\nMemAvailable:    8 kB\n")
	expect("no control groups", 8192)
	write("proc/self/cgroup", "1:name=systemd:/x\n0::/system.slice/target.service\n")
	expect("no limits", 8192)
	group := "sys/fs/cgroup/system.slice/target.service/"
	write(group+"memory.max", "max\n")
	write(group+"memory.current", "1000\n")
	expect("a group without a limit", 8192)
	write("sys/fs/cgroup/system.slice/memory.max", "6000\n")
	write("sys/fs/cgroup/system.slice/memory.current", "2000\n")
	expect("a limit of an outer group", 4000)
	write(group+"memory.max", "900\n")
	expect("a limit that is exceeded", 0)
}

func TestAvailableMemoryHere(t *testing.T) {
	n, err := AvailableMemory()
	testutil.True(t, err == nil && n > 0, "%d, %v", n, err)
}
