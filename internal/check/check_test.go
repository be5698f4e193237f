package check

import (
	"bytes"
	"errors"
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

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
)

// parse parses a configuration, without a look at this machine.
func parse(file, text string, environ ...string) (*config.Config, error) {
	return config.Parse(file, []byte(text), environ, volumes.Backends)
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nvmf-target.yaml")
	testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// TestBrokenFiles: every broken configuration is refused with the messages in the file beside it.
// The schema finds each error that a schema can express.
func TestBrokenFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../config/testdata/broken/*.yaml")
	testutil.MustTrue(t, err == nil && len(files) >= 10, "%d broken files, %v: want at least ten",
		len(files), err)
	s, beyond, used, ran := schema(t), beyondSchema(t), map[string]bool{}, 0
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			ran++
			var out bytes.Buffer
			err := File(file, nil, &out)
			testutil.MustTrue(t, err != nil && out.Len() == 0, "accepted: %s", out.String())
			got := strings.ReplaceAll(err.Error(), filepath.Dir(file)+"/", "") + "\n"
			testutil.Golden(t, strings.TrimSuffix(file, ".yaml")+".golden", got)
			if problems, ok := errors.AsType[config.Problems](err); ok {
				schemaFinds(t, s, file, problems, beyond, used)
			}
		})
	}
	for part := range beyond {
		testutil.True(t, used[part] || ran != len(files), "no error contains %q", part)
	}
}

func TestCheckValid(t *testing.T) {
	var out bytes.Buffer
	file := writeConfig(t, validFile)
	testutil.Must(t, File(file, nil, &out))
	want := file + ": valid: 1 listener, 1 subsystem, 1 namespace\n"
	testutil.True(t, out.String() == want, "got %q, want %q", out.String(), want)
}

func TestCheckLooksAtDAXDevices(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dax0.0")
	if err := syscall.Mknod(path, syscall.S_IFCHR|0o600, 1<<8|3); err != nil {
		t.Skipf("no device: mknod needs CAP_MKNOD: %v", err)
	}
	err := File(writeConfig(t,
		strings.Replace(validFile, "backend: ram, size: 16MiB", "backend: file, path: "+path, 1)),
		nil, io.Discard)
	testutil.True(t, err != nil && strings.Contains(err.Error(), "Make it one of mode fsdax"), "%v",
		err)
}

// warnings returns the warnings of check, and an error if it finds one.
func warnings(t *testing.T, text string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := File(writeConfig(t, text), nil, &out)
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
				", with "+Count(len(lines)-1, "warning")), "printed:\n%s\nwant %q", out,
				test.want)
		})
	}
	_, err := warnings(t, namespaces(two("full", ", preallocate: full")))
	want := fmt.Sprintf("full2\" and the files before it on its file system need %d more bytes",
		2*most)
	testutil.Fails(t, err, want, "")
}

// TestStorageThatDoesNotAnswer: a device with a driver that refuses to open it counts as missing.
func TestStorageThatDoesNotAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	const demo = 42 << 8 // major numbers that no driver has
	if err := syscall.Mknod(path, syscall.S_IFBLK|0o600, demo); err != nil {
		t.Skipf("no device: mknod needs CAP_MKNOD: %v", err)
	}
	on := func(backend string) (string, error) {
		return warnings(t, strings.Replace(validFile, "backend: ram, size: 16MiB",
			"backend: "+backend+", path: "+path, 1))
	}
	out, err := on("block")
	testutil.True(t, err == nil && strings.Contains(out, "the namespace is pending"), "%v, %s", err,
		out)
	testutil.True(t, testutil.Err(on("file")) != nil, "a device passes for a file")
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
		c := testutil.Value(parse("test.yaml", strings.Replace(validFile,
			"transport: tcp, address: 127.0.0.1, port: 0", tc.listener, 1)))(t)
		ps := Listeners(c, network.Provider("target"))
		testutil.True(t, (len(ps) == 0) == (tc.want == "") && ps.Failed() == tc.failed &&
			strings.Contains(ps.Error(), tc.want), "%s: %v, want %q", tc.listener, ps, tc.want)
	}
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
	const nqn = "nqn.2026-11.io.nvmf-target:test"
	testutil.Fails(t, err, "namespace 2 of "+nqn+" is on the same storage as namespace 1 of "+nqn,
		"")
}

func TestReactorCPUs(t *testing.T) {
	for _, test := range []struct {
		reactors config.Reactors
		want     []int
	}{
		{config.Reactors{CPUs: []int{3, 1}}, []int{3, 1}},
		{config.Reactors{Count: 2}, []int{-1, -1}},
	} {
		got := ReactorCPUs(test.reactors)
		testutil.True(t, len(got) == len(test.want) && got[0] == test.want[0] &&
			got[1] == test.want[1], "%+v: got %v, want %v", test.reactors, got, test.want)
	}
	got := ReactorCPUs(config.Reactors{})
	testutil.True(t, len(got) >= 1 && got[0] == -1, "default: %v", got)
}
