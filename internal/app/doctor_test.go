package app

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs/verbstest"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
)

// TestDoctor: what the configuration's own checks find is in the list, each with its severity, and
// the machine is checked whatever is wrong with the configuration.
func TestDoctor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	network := verbstest.New(verbstest.Options{})
	defer network.Close()
	network.AddHost("target", verbstest.RoCE("rxe0", netip.MustParseAddr("10.0.0.1")))
	m := doctor.Linux()
	m.Memlock = func() (uint64, bool) { return 64 << 10, true }
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk")
	if err := os.WriteFile(disk, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
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
			"rdma", listener("transport: rdma, address: 127.0.0.1"), true,
			doctor.Error, "locked memory", "the limit of this user is 64 KiB",
		},
		{
			"socket", validFile + "\ncontrol: {socket: " + dir + "/c.sock}\n", true, doctor.OK,
			"control socket", dir + "/c.sock",
		},
	} {
		file := filepath.Join(t.TempDir(), "c.yaml")
		if tc.text != "" {
			if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		found, machine := false, false
		list := diagnose(m, network.Provider("target"), file, tc.required, nil)
		for _, f := range list {
			machine = machine || f.Check == "io_uring"
			found = found || f.Check == tc.check && strings.Contains(f.Found, tc.found) &&
				(f.Severity == tc.severity || tc.severity == "")
		}
		if !found || !machine {
			t.Errorf("%s: %+v", tc.name, list)
		}
	}
}
