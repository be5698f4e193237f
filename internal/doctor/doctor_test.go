package doctor

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
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
		testutil.Must(t, err)
	}
	return Machine{
		Root: root, Memlock: func() (uint64, bool) { return 0, false },
		IOUring: func() error { return nil },
		// Files stand for the answers of the driver.
		FeaturesOff: func(name string, _ ...string) ([]string, error) {
			return strings.Fields(sys.Attribute(filepath.Join(root, "ethtool", name, "off"))), nil
		},
		UDPPortsHashed: func(name string) (bool, error) {
			text := sys.Attribute(filepath.Join(root, "ethtool", name, "hash"))
			if text == "" {
				return false, unix.EOPNOTSUPP
			}
			return text == "ports", nil
		},
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

// expect compares findings with "severity: part of Found", one for each. A finding that is not OK
// has a reason and a fix, which contains the part after " | ".
func expect(t *testing.T, got []Finding, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("got %d findings %+v, want %q", len(got), got, want)
		return
	}
	for i, f := range got {
		text, fix, _ := strings.Cut(want[i], " | ")
		severity, found, _ := strings.Cut(text, ": ")
		testutil.True(t, string(f.Severity) == severity && strings.Contains(f.Found, found) &&
			strings.Contains(f.Fix, fix), "got %+v, want %q", f, want[i])
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
	t.Run(c.name, func(t *testing.T) { expect(t, c.run(machine(t, c.files), c.t), c.want...) })
}

// with returns files with additional ones.
func with(list, more files) files {
	list = maps.Clone(list)
	maps.Copy(list, more)
	return list
}

// TestRun: this machine can be checked, and a machine without any files.
func TestRun(t *testing.T) {
	at := Target{
		Reactors: []int{0}, RDMA: true, Sockets: []string{"/run/c.sock"}, StateDir: "/var",
	}
	for _, f := range Linux().Run(at) {
		testutil.True(t, f.Check != "" && f.Found != "" && (f.Fix == "") == (f.Severity == OK),
			"%+v", f)
	}
	list := machine(t, nil).Run(Target{})
	testutil.True(t, Worst(list) == OK && len(list) != 0, "an empty machine: %+v", list)
}

func TestWorst(t *testing.T) {
	list := []Finding{{Severity: Note}, {Severity: Error}, {Severity: Warning}, {Severity: OK}}
	for n, want := range []Severity{OK, Note, Error, Error, Error} {
		testutil.Equal(t, Worst(list[:n]), want, "of %d", n)
	}
}

// TestDoctorSocket: a named target that does not answer is an error, and no other target is asked.
func TestDoctorSocket(t *testing.T) {
	m := Linux()
	for _, socket := range []string{"", filepath.Join(t.TempDir(), "control.sock")} {
		found := 0
		for _, f := range m.Examine(Target{}, socket) {
			if strings.Contains(f.Found, "no target listens at "+socket) && f.Severity == Error {
				found++
			}
		}
		want := min(len(socket), 1)
		testutil.True(t, found == want, "%q: %d findings, want %d", socket, found, want)
	}
}
