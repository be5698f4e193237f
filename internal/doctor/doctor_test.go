package doctor

import (
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// files are the files of a machine by name, symbolic links if the content begins with "->".
type files = map[string]string

// machine makes a machine of files on which everything is allowed. Files with the content "denied"
// may not be used.
func machine(t *testing.T, list files) Machine {
	t.Helper()
	root := t.TempDir()
	for name, text := range list {
		path := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if target, ok := strings.CutPrefix(text, "->"); ok {
			err = errors.Join(err, os.Symlink(target, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(text+"\n"), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return Machine{
		Root: root, Memlock: func() (uint64, bool) { return 0, false },
		IOUring: func() error { return nil },
		Access: func(path string, _ uint32) error {
			if sys.Attribute(path) == "denied" || sys.Attribute(path+"/denied") != "" {
				return unix.EACCES
			}
			if _, err := os.Stat(path); err != nil {
				return err.(*fs.PathError).Err
			}
			return nil
		},
	}
}

// expect compares findings with "severity: part of what was found", one for each. What is not OK
// has a reason and a fix, which contains the part behind " | ".
func expect(t *testing.T, got []Finding, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("got %d findings %+v, want %q", len(got), got, want)
		return
	}
	for i, f := range got {
		text, fix, _ := strings.Cut(want[i], " | ")
		severity, found, _ := strings.Cut(text, ": ")
		if string(f.Severity) != severity || !strings.Contains(f.Found, found) ||
			!strings.Contains(f.Fix, fix) {
			t.Errorf("got %+v, want %q", f, want[i])
		}
		if bad := f.Severity != OK; f.Check == "" || (f.Why != "") != bad || (f.Fix != "") != bad {
			t.Errorf("incomplete: %+v", f)
		}
	}
}

// check is one check on one machine.
type check struct {
	name  string
	run   func(Machine, Target) []Finding
	files files
	t     Target
	want  []string
}

func (c check) test(t *testing.T) {
	t.Run(c.name, func(t *testing.T) {
		expect(t, c.run(machine(t, c.files), c.t), c.want...)
	})
}

// with returns files with further ones.
func with(list, more files) files {
	list = maps.Clone(list)
	maps.Copy(list, more)
	return list
}

func TestMemlock(t *testing.T) {
	m := machine(t, nil)
	expect(t, m.memlock(Target{Memory: 1 << 30})) // no RDMA
	expect(t, m.memlock(Target{RDMA: true}), "ok: no limit")
	m.Memlock = func() (uint64, bool) { return 8 << 20, true }
	expect(t, m.memlock(Target{RDMA: true, Memory: 8 << 20}), "ok: 8192 KiB")
	expect(t, m.memlock(Target{RDMA: true, Memory: 8<<20 + 1024}),
		"error: 8192 KiB, and the reactors need 8193 KiB | LimitMEMLOCK=infinity")
	with := machine(t, files{infiniband + "/rxe0/node_type": "1: CA"})
	with.Memlock = m.Memlock
	expect(t, with.memlock(Target{}), "note: the limit of this user is 8192 KiB | ulimit -l")
}

func TestIOUring(t *testing.T) {
	for _, tc := range []struct {
		sysctl string
		err    error
		want   string
	}{
		{"", nil, "ok: this user"},
		{"0", nil, "ok: this user"},
		{"0", unix.EPERM, "warning: operation not permitted | SystemCallFilter="},
		{"", unix.ENOSYS, "warning: function not implemented | seccomp"},
		{"1", nil, "note: group 990 | kernel.io_uring_group"},
		{"1", unix.EPERM, "warning: operation not permitted | kernel.io_uring_group"},
		{"2", unix.EPERM, "warning: operation not permitted | sysctl kernel.io_uring_disabled=0"},
	} {
		list := files{"proc/sys/kernel/io_uring_group": "990"}
		if tc.sysctl != "" {
			list["proc/sys/kernel/io_uring_disabled"] = tc.sysctl
		}
		m := machine(t, list)
		m.IOUring = func() error { return tc.err }
		expect(t, m.ioUring(Target{}), tc.want)
	}
}

func TestListeners(t *testing.T) {
	const head = "  sl  local_address rem_address   st ...\n"
	line := func(addr, state, inode string) string {
		return "   0: " + addr + " 00000000:0000 " + state +
			" 00000000:00000000 00:00000000 00000000 0 0 " + inode + " 1 x 100 0 0 10 0\n"
	}
	list := files{
		// 127.0.0.1:4420 (little-endian), 0.0.0.0:4421, and a connection of 127.0.0.1:4422
		"proc/net/tcp": head + line("0100007F:1144", "0A", "77") +
			line("00000000:1145", "0A", "78") + line("0100007F:1146", "01", "79"),
		// [::1]:4423
		"proc/net/tcp6": head + line("00000000000000000000000001000000:1147", "0A", "80"),
		"proc/812/comm": "nginx", "proc/812/fd/4": "->socket:[77]", "proc/812/fd/3": "->/dev/null",
		"proc/813/comm": "nvmf-target", "proc/813/fd/4": "->socket:[78]",
		"proc/self/comm": "nvmf-target",
	}
	for address, want := range map[string]string{
		"127.0.0.1:4420": "warning: in use by process 812 (nginx) | another port",
		"0.0.0.0:4420":   "warning: in use by process 812 (nginx)",
		"10.0.0.1:4420":  "ok: is free",
		"10.0.0.1:4421":  "ok: is served by process 813",
		"127.0.0.1:4422": "ok: is free",
		"[::1]:4423":     "warning: in use by the kernel or a process",
		"127.0.0.1:0":    "ok: is free",
	} {
		check{address, Machine.listeners, list, Target{
			Listeners: []Listener{{"tcp " + address, netip.MustParseAddrPort(address)}},
		}, []string{want}}.test(t)
	}
}

func TestControlAndState(t *testing.T) {
	const socket = "/run/nvmf-target/control.sock"
	at := Target{Sockets: []string{"/run/user/1/c.sock", socket}, StateDir: "/var/lib/x"}
	listening := "Num RefCount Protocol Flags Type St Inode Path\n" +
		"0001: 00000002 00000000 00000000 0001 03 55 /run/user/1/c.sock\n" +
		"0002: 00000002 00000000 00010000 0001 01 56 " + socket + "\n"
	for _, c := range []check{
		{"no socket", Machine.control, nil, Target{}, nil},
		{
			"runs", Machine.control,
			files{
				"proc/net/unix": listening, "proc/7/comm": "nvmf-target",
				"proc/7/fd/3": "->socket:[56]",
			},
			at,
			[]string{"ok: process 7 (nvmf-target) serves at " + socket},
		},
		{
			"of another user", Machine.control,
			files{"proc/net/unix": listening},
			at,
			[]string{"ok: a process of another user"},
		},
		{
			"does not run", Machine.control,
			files{"run/x": ""},
			at,
			[]string{"ok: no target runs at /run/user/1/c.sock"},
		},
		{
			"no right", Machine.control,
			files{"run/user/1/denied": "x"},
			at,
			[]string{"note: /run/user/1: permission denied | RuntimeDirectory="},
		},
		{"no state", Machine.state, nil, Target{}, nil},
		{"state", Machine.state, files{"var/x": ""}, at, []string{"ok: this user may write"}},
		{
			"state without right", Machine.state,
			files{"var/lib/denied": "x"},
			at,
			[]string{"note: /var/lib: permission denied | StateDirectory="},
		},
	} {
		c.test(t)
	}
}

// TestRun: this machine can be checked, and a machine without anything.
func TestRun(t *testing.T) {
	at := Target{
		Reactors: []int{0}, RDMA: true, Sockets: []string{"/run/c.sock"}, StateDir: "/var",
	}
	for _, f := range Linux().Run(at) {
		if f.Check == "" || f.Found == "" || (f.Fix == "") != (f.Severity == OK) {
			t.Errorf("%+v", f)
		}
	}
	if list := machine(t, nil).Run(Target{}); Worst(list) != OK || len(list) == 0 {
		t.Errorf("an empty machine: %+v", list)
	}
}

func TestWorst(t *testing.T) {
	list := []Finding{{Severity: Note}, {Severity: Error}, {Severity: Warning}, {Severity: OK}}
	for n, want := range []Severity{OK, Note, Error, Error, Error} {
		testutil.Equal(t, Worst(list[:n]), want, "of %d", n)
	}
}
