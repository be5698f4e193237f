package app

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
)

// warnings returns the warnings of check, and an error if it finds one.
func warnings(t *testing.T, text string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := check.File(writeConfig(t, text), nil, &out)
	return out.String(), err
}

// TestCheckWarns: a doubtful but usable value is a warning, and the number of warnings is in the
// last line.
func TestCheckWarns(t *testing.T) {
	available := testutil.Value(sys.AvailableMemory())(t)
	dir := t.TempDir()
	var fs unix.Statfs_t
	testutil.Must(t, unix.Statfs(dir, &fs))
	if os.Geteuid() == 0 {
		fs.Bavail = fs.Bfree
	}
	most := int64(fs.Bavail) * fs.Bsize / 4 * 3 >> 12 << 12
	// two are files that fit their file system only alone.
	two := func(name, options string) string {
		return fmt.Sprintf("{nsid: 1, backend: file, path: %s/%s1, size: %d%s}, "+
			"{nsid: 2, backend: file, path: %[1]s/%[2]s2, size: %[3]d%[4]s}", dir, name, most,
			options)
	}
	namespaces := func(text string) string {
		return strings.Replace(validFile, "{nsid: 1, backend: ram, size: 16MiB}", text, 1)
	}
	for _, test := range []struct{ name, text, want string }{
		{
			"reactors", strings.Replace(validFile, "count: 1", "count: 256", 1),
			"256 reactors share ",
		},
		{
			"memory", namespaces("{nsid: 1, backend: ram, size: 4000TiB}"),
			"namespaces[0]: it may grow to ",
		},
		{
			"memory in all", namespaces(fmt.Sprintf("{nsid: 1, backend: ram, size: %d}, "+
				"{nsid: 2, backend: ram, size: %[1]d}", available/4*3>>12<<12)),
			"the namespaces in memory may take ",
		},
		{
			"space", namespaces("{nsid: 1, backend: file, size: 10TiB, path: " + t.TempDir() +
				"/disk}"), "may grow by ",
		},
		{
			"space in all", namespaces(two("sparse", "")),
			fmt.Sprintf("sparse2\" and the files before it on its file system may take %d more "+
				"bytes, and that has ", 2*most),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := testutil.Value(warnings(t, test.text))(t)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			testutil.True(t, len(lines) >= 2 && strings.Contains(out, ": warning: ") &&
				strings.Contains(out, test.want) && strings.HasSuffix(lines[len(lines)-1],
				", with "+check.Count(len(lines)-1, "warning")), "printed:\n%s\nwant %q", out,
				test.want)
		})
	}
	_, err := warnings(t, namespaces(two("full", ", preallocate: full")))
	want := fmt.Sprintf("full2\" and the files before it on its file system need %d more bytes",
		2*most)
	testutil.Fails(t, err, want, "")
}

// TestCheckLooksAtDevices: a listener for RDMA does not conflict with one for TCP, and needs an
// address of a device.
func TestCheckLooksAtDevices(t *testing.T) {
	l := testutil.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	testutil.Must(t, err)
	network := verbstest.New(verbstest.Options{})
	defer network.Close()
	network.AddHost("target", verbstest.RoCE("rxe0", netip.MustParseAddr("10.0.0.1")))
	const elsewhere = "no interface of this machine has that address now"
	for _, tc := range []struct {
		listener, want string // "" if nothing is wrong
		failed         bool
	}{
		{"transport: rdma, address: 127.0.0.1, port: " + port, "", false},
		{"transport: rdma, address: 192.0.2.1, on_unavailable: fail", elsewhere, true},
	} {
		ps := check.Listeners(parse(t, "{"+tc.listener+"}"), network.Provider("target"))
		testutil.True(t, (len(ps) == 0) == (tc.want == "") && ps.Failed() == tc.failed &&
			strings.Contains(ps.Error(), tc.want), "%s: %v, want %q", tc.listener, ps, tc.want)
	}
}

// TestStorageThatDoesNotAnswer: a device with a driver that refuses to open it counts as missing.
func TestStorageThatDoesNotAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	const demo = 42 << 8 // major numbers that no driver has
	if err := syscall.Mknod(path, syscall.S_IFBLK|0o600, demo); err != nil {
		t.Skipf("no device: mknod needs CAP_MKNOD: %v", err)
	}
	text := strings.Replace(validFile, "backend: ram, size: 16MiB", "backend: block, path: "+path,
		1)
	out, err := warnings(t, text)
	testutil.True(t, err == nil && strings.Contains(out, "the namespace is pending"),
		"check: %v, %s", err, out)
	_, err = warnings(t, strings.Replace(text, "backend: block", "backend: file", 1))
	testutil.True(t, err != nil, "a device passes for a file")
	c := parsed(t, text)
	s := started(t, Options{Config: c})
	a := s.announcement()
	testutil.True(t, len(a.pending) == 1, "%d namespaces are pending", len(a.pending))
}

// TestTheSameStorageTwice: a file and a loop device on it are one storage.
func TestTheSameStorageTwice(t *testing.T) {
	file := filepath.Join(t.TempDir(), "disk")
	testutil.Must(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device: %v: %s", err, out)
	}
	loop := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", loop).Run() })
	_, err = warnings(t, strings.Replace(validFile, "{nsid: 1, backend: ram, size: 16MiB}",
		"{nsid: 1, backend: file, path: "+file+"}, {nsid: 2, backend: block, path: "+loop+"}", 1))
	testutil.True(t, err != nil && strings.Contains(err.Error(),
		"namespace 2 of "+testNQN+" is on the same storage as namespace 1 of "+testNQN), "got %v",
		err)
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
