package app

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestStorageThatDoesNotAnswer: a device with a driver that refuses to open it counts as missing.
func TestStorageThatDoesNotAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	const demo = 42 << 8 // major numbers that no driver has
	if err := syscall.Mknod(path, syscall.S_IFBLK|0o600, demo); err != nil {
		t.Skipf("no device: mknod needs CAP_MKNOD: %v", err)
	}
	text := strings.Replace(validFile, "backend: ram, size: 16MiB", "backend: block, path: "+path,
		1)
	s := started(t, Options{Config: parsed(t, text)})
	a := s.announcement()
	testutil.True(t, len(a.pending) == 1, "%d namespaces are pending", len(a.pending))
}

// TestFewDescriptors: with fewer descriptors than connections the target warns at the start, and
// gives a fix when a connection cannot be accepted.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	child := exec.Command("sh", "-c", "ulimit -n 64; exec \"$0\"", os.Args[0])
	stderr := testutil.Value(child.StderrPipe())(t)
	addr := address(t, startServe(t, child))
	for range 80 {
		c := testutil.Value(net.Dial("tcp", addr))(t)
		defer c.Close()
	}
	log, warned := bufio.NewScanner(stderr), false
	for log.Scan() && !strings.Contains(log.Text(), "too many open files (raise LimitNOFILE=") {
		warned = warned ||
			strings.Contains(log.Text(), "open files, and the limit is 64. Set LimitNOFILE=")
	}
	testutil.True(t, log.Text() != "" && warned, "warned at the start: %v; the last line: %q",
		warned, log.Text())
	_ = child.Process.Signal(syscall.SIGTERM)
	_, _ = io.Copy(io.Discard, stderr)
	testutil.Check(t, child.Wait())
}
