package app

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// pendingConfig has a namespace in memory, and one in a file in a directory that does not exist.
func pendingConfig(t *testing.T, path string) *config.Config {
	t.Helper()
	c := parsed(t, `
listeners: [`+anyPort+`]
subsystems:
  - nqn: `+testNQN+`
    allow_any_host: true
    namespaces:
      - {nsid: 1, backend: ram, size: 16MiB}
      - {nsid: 2, backend: file, path: `+path+`, size: 1MiB}
reactors: {count: 1, memory: 16MiB}
metrics: {listen: "127.0.0.1:0"}
`)
	return c
}

// TestMissingStorage: a namespace with missing storage is pending and all others are served. Hosts
// are told when it appears.
func TestMissingStorage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mount")
	var log testutil.Log
	c := pendingConfig(t, filepath.Join(dir, "disk"))
	up := make(chan uint32, 1)
	s := started(t, Options{
		Config: c, Log: slog.New(slog.NewTextHandler(&log, nil)), Retry: time.Millisecond,
		NamespaceUp: func(_ string, nsid uint32) { up <- nsid },
	})
	ctx := testutil.Context(t)
	o := hostOptions(testNQN)
	h := testutil.Value(host.Connect(ctx, host.TCP{Addr: s.Addrs()[0].AddrPort}, o))(t)
	defer h.Close()
	events := testutil.Value(hosttest.Events(ctx, h, nvme.EventNamespaceChanged))(t)
	namespaces := func(want ...uint32) {
		t.Helper()
		if got, err := hosttest.ActiveNamespaces(ctx, h); err != nil || !slices.Equal(got, want) {
			t.Errorf("the host sees the namespaces %v (%v), want %v", got, err, want)
		}
		pending := 2 - len(want)
		expect(t, scrape(t, s),
			map[string]float64{"nvmf_target_namespaces_pending": float64(pending)})
	}
	namespaces(1)
	writeAndRead(t, host.TCP{Addr: s.Addrs()[0].AddrPort})
	a := s.announcement()
	text := a.text(reachable)
	testutil.True(t, strings.Contains(text, "with 1 namespace on") && strings.Contains(text,
		"  pending: namespace 2 of "+testNQN+", until "+dir), "announced: %s", text)
	testutil.Must(t, os.Mkdir(dir, 0o700))
	nsid := testutil.Receive(t, "the namespace is up", up)
	testutil.True(t, nsid == 2, "namespace %d is up", nsid)
	e := testutil.Receive(t, "the host is told", events)
	testutil.Equal(t, e, nvme.AsyncNamespaceChanged, "event")
	namespaces(1, 2)
	text = log.String()
	testutil.True(t, strings.Count(text, "namespace is pending") == 1 && strings.Count(text,
		"namespace is served now") == 1, "log:\n%s", text)
}

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

// TestWrongStorageAppears: a problem is reported once, and the namespace stays pending until it is
// fixed.
func TestWrongStorageAppears(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mount")
	path := filepath.Join(dir, "disk")
	var log testutil.Log
	c := pendingConfig(t, path)
	up := make(chan uint32, 1)
	s := started(t, Options{
		Config: c, Log: slog.New(slog.NewTextHandler(&log, nil)), Retry: time.Millisecond,
		NamespaceUp: func(_ string, nsid uint32) { up <- nsid },
	})
	made := filepath.Join(t.TempDir(), "mount") // at once, or the target creates the file
	testutil.Must(t, errors.Join(os.MkdirAll(filepath.Join(made, "disk"), 0o700),
		os.Rename(made, dir)))
	testutil.Until(t, "the log says what is wrong", func() bool {
		return strings.Contains(log.String(), "is a directory")
	})
	testutil.Equal(t, len(s.announcement().pending), 1, "the namespace is not pending")
	testutil.Must(t, os.Remove(path))
	testutil.Receive(t, "the namespace is up", up)
	n := strings.Count(log.String(), "is a directory")
	testutil.True(t, n == 1, "it was said %d times", n)
}
