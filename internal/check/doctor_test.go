package check

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/ibv"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// TestDoctor: the list has the results of the checks of the configuration, each with its severity,
// and the machine is checked even if the configuration is wrong.
func TestDoctor(t *testing.T) {
	l := testutil.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	network := verbstest.New(verbstest.Options{})
	defer network.Close()
	network.AddHost("target", verbstest.RoCE("rxe0", netip.MustParseAddr("10.0.0.1")))
	m := doctor.Linux()
	m.Memlock = func() (uint64, bool) { return 64 << 10, true }
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk")
	testutil.Must(t, os.WriteFile(disk, make([]byte, 1<<20), 0o600))
	listener := func(text string) string {
		return strings.Replace(validFile, "transport: tcp, address: 127.0.0.1, port: 0", text, 1)
	}
	namespaces := func(text string) string {
		return strings.Replace(validFile, "{nsid: 1, backend: ram, size: 16MiB}", text, 1)
	}
	for _, tc := range []struct {
		name, text string
		required   bool
		severity   doctor.Severity
		check      string
		found      string
	}{
		{"valid", validFile, true, doctor.OK, configuration, "is valid"},
		{"missing", "", false, doctor.Note, configuration, "no such file"},
		{"missing, required", "", true, doctor.Error, configuration, "no such file"},
		{"unknown key", validFile + "\nnonsense: " +
			"1\n", true, doctor.Error, configuration, "unknown key"},
		{
			"storage", namespaces("{nsid: 1, backend: file, path: /proc/self/none}"), true,
			doctor.Warning, configuration, "subsystems[0].namespaces[0].path: ",
		},
		{
			"file", namespaces("{nsid: 1, backend: file, path: " + disk + "}"), true, "",
			"file system", "",
		},
		{
			"listener", listener("transport: tcp, address: 127.0.0.1, port: " +
				"" + port), true, doctor.OK,
			"listener", "is served by process " + fmt.Sprint(os.Getpid()),
		},
		{
			"iwarp", listener("transport: rdma, stack: soft-iwarp, address: 127.0.0.1, port: " +
				port), true, doctor.OK,
			"listener", "is served by process " + fmt.Sprint(os.Getpid()),
		},
		{
			"iwarp, no warning", listener("transport: rdma, stack: soft-iwarp, address: " +
				"127.0.0.1, port: " + port), true, doctor.OK, configuration, "is valid",
		},
		{
			"rdma", listener("transport: rdma, address: 127.0.0.1, stack: device"), true,
			doctor.Error, "locked memory", "the limit of this user is 64 KiB",
		},
		{
			"socket", validFile + "\ncontrol: {socket: " + dir + "/c.sock}\n", true, doctor.OK,
			"control socket", dir + "/c.sock",
		},
	} {
		file := filepath.Join(t.TempDir(), "c.yaml")
		if tc.text != "" {
			testutil.Must(t, os.WriteFile(file, []byte(tc.text), 0o600))
		}
		found, machine := false, false
		list := diagnose(m, network.Provider("target"), file, tc.required, "", nil)
		for _, f := range list {
			machine = machine || f.Check == "io_uring"
			found = found || f.Check == tc.check && strings.Contains(f.Found, tc.found) &&
				(f.Severity == tc.severity || tc.severity == "")
		}
		testutil.True(t, found && machine, "%s: %+v", tc.name, list)
	}
}

// TestDoctorOfRunningTarget: storage in use by the running target is no problem, storage in use by
// another process is one.
func TestDoctorOfRunningTarget(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(root, name)
		testutil.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
			os.WriteFile(path, []byte(text), 0o600)))
		return path
	}
	disk := write("disk", strings.Repeat("x", 1<<20))
	holder := exec.Command("sh", "-c", "exec 3<>\"$0\"; echo ready; read line; true", disk)
	in, err1 := holder.StdinPipe()
	ready, err2 := holder.StdoutPipe()
	testutil.Must(t, errors.Join(err1, err2, holder.Start()))
	defer func() { _ = errors.Join(in.Close(), holder.Wait()) }()
	testutil.Value(ready.Read(make([]byte, 6)))(t)
	file := write("c.yaml", strings.Replace(validFile, "backend: ram, size: 16MiB",
		"backend: file, path: "+disk, 1)+"control: {socket: /run/c.sock}\n")
	m := doctor.Linux()
	m.Root = root
	first := func() doctor.Finding { return diagnose(m, ibv.New(), file, true, "", nil)[0] }
	pid := holder.Process.Pid
	who := fmt.Sprintf("is in use by process %d (sh)", pid)
	if f := first(); f.Severity != doctor.Warning || !strings.Contains(f.Found, who) {
		t.Errorf("another process: %+v", f)
	}
	write("proc/net/unix", "1: 00000002 00000000 00010000 0001 01 56 /run/c.sock\n")
	write(fmt.Sprintf("proc/%d/comm", pid), "sh\n")
	fds := filepath.Join(root, fmt.Sprintf("proc/%d/fd", pid))
	testutil.Must(t, errors.Join(os.Mkdir(fds, 0o700),
		os.Symlink("socket:[56]", filepath.Join(fds, "4"))))
	f := first()
	testutil.True(t, f.Severity == doctor.OK, "the target itself: %+v", f)
}

const validFile = `
listeners: [{transport: tcp, address: 127.0.0.1, port: 0}]
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:test
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: 16MiB}]
reactors: {count: 1, memory: 8MiB}
`
