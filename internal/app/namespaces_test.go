package app

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestEmptyDevice: a block device without a medium, such as a loop device without a file, counts as
// missing.
func TestEmptyDevice(t *testing.T) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no loop device: %v", err)
	}
	t.Cleanup(func() { _ = control.Close() })
	n := 1000 + os.Getpid()%100000 // losetup --find does not choose it
	if err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, n); err != nil {
		t.Skipf("no loop device: %v", err)
	}
	device, backing := fmt.Sprintf("/dev/loop%d", n), filepath.Join(t.TempDir(), "backing")
	t.Cleanup(func() { // after the server has closed it
		_ = exec.Command("losetup", "--detach", device).Run()
		_ = unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, n)
	})
	testutil.Must(t, os.WriteFile(backing, make([]byte, 1<<20), 0o600))
	text := strings.Replace(validFile, "backend: ram, size: 16MiB", "backend: block, path: "+
		device, 1)
	out, err := warnings(t, text)
	testutil.True(t, err == nil && strings.Contains(out, "the namespace is pending"),
		"check: %v, %s", err, out)
	c := parsed(t, text)
	up := make(chan uint32, 1)
	started(t, Options{
		Config: c, Retry: time.Millisecond,
		NamespaceUp: func(_ string, nsid uint32) { up <- nsid },
	})
	if out, err := exec.Command("losetup", device, backing).CombinedOutput(); err != nil {
		t.Skipf("no loop device: %v: %s", err, out)
	}
	testutil.Receive(t, "the namespace is up", up)
}
