package inventory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// machine makes the files listed in a description.
func machine(t *testing.T, file string) Machine {
	t.Helper()
	text, err := os.ReadFile(file)
	testutil.Must(t, err)
	root := t.TempDir()
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		name, target, link := strings.Cut(line, " -> ")
		if !link {
			name, target, _ = strings.Cut(line, " = ")
		}
		path := filepath.Join(root, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		if link {
			err = os.Symlink(target, path)
		} else {
			var f *os.File
			if f, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
				_, err = f.WriteString(target + "\n")
				_ = f.Close()
			}
		}
		testutil.Must(t, err)
	}
	return Machine{
		Sys: filepath.Join(root, "sys"), Proc: filepath.Join(root, "proc"),
		ByID: filepath.Join(root, "by-id"),
	}
}

func TestList(t *testing.T) {
	m := machine(t, "testdata/machine.txt")
	asked := map[string]bool{}
	m.Ask = func(d *observed.Disk) Health {
		asked[d.Name] = true
		switch d.Name {
		case "sda":
			return Health{
				State: Warning, Notes: []string{"3 reallocated sectors"}, Celsius: 34,
				PowerOnHours: 20000, UsedPercent: -1,
			}
		case "nvme0n1":
			return Health{State: Good, Celsius: 41, PowerOnHours: 12, UsedPercent: 3}
		}
		return unknown("only root may ask")
	}
	list := testutil.Value(m.List(
		map[string][]string{
			"8:0":   {"namespace 2 of nqn.2026-11.io.nvmf-target:disk0", "namespace 4 of x"},
			"8:1":   {"namespace 2 of nqn.2026-11.io.nvmf-target:disk0"},
			"259:1": {"namespace 3 of x"},
		}))(t)
	for name, want := range map[string]bool{
		"sda": true, "sdb": true, "sdaa": true, "nvme0n1": true,
		"nvme1n1": true, "nvme2n1": false, "loop0": false, "sdc": false,
	} {
		testutil.Equal(t, asked[name], want, "%s: asked for its health", name)
	}
	for i := range list {
		d, path := &list[i], ""
		if d.Name == "sda" {
			path = filepath.Join(m.ByID, "ata-Samsung_840_S1")
		}
		testutil.Equal(t, d.Path, path, "%s: path", d.Name)
		d.Path = ""
	}
	var out strings.Builder
	for _, d := range list {
		fmt.Fprintf(&out, "%s: %+v\n", d.Name, d)
	}
	testutil.Golden(t, "testdata/machine.golden", out.String())
}

// TestListProcesses: a disk that a process has open for writing is in use and cannot be exported.
func TestListProcesses(t *testing.T) {
	m := machine(t, "testdata/machine.txt")
	dir := filepath.Join(m.Proc, "812")
	testutil.Must(t, errors.Join(os.MkdirAll(filepath.Join(dir, "fd"), 0o700),
		os.MkdirAll(filepath.Join(dir, "fdinfo"), 0o700),
		os.WriteFile(filepath.Join(dir, "comm"), []byte("nvmf-target\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "fdinfo/3"), []byte("flags:\t0140002\n"), 0o600),
	))
	number := int(unix.Mkdev(259, 0)) // nvme0n1
	if err := unix.Mknod(filepath.Join(dir, "fd/3"), unix.S_IFBLK|0o600, number); err != nil {
		t.Skipf("a device node cannot be made (root is needed): %v", err)
	}
	list := testutil.Value(m.List(nil))(t)
	for _, d := range list {
		used := slices.Equal(d.Uses, []string{"process 812 (nvmf-target)"})
		testutil.True(t, used == (d.Name == "nvme0n1") && (!used || d.NotExportable == "in use"),
			"%s: %q", d.Name, d.Uses)
	}
}

// TestThisMachine: the disks of this machine can be listed.
func TestThisMachine(t *testing.T) {
	list, err := Linux().List(nil)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("sysfs is missing: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		testutil.True(t, d.Name != "" && (d.SizeBytes != 0 || d.Bus != "virtual"), "%+v", d)
	}
	if _, err := (Machine{Sys: "/does/not/exist", Proc: "/proc"}).List(nil); err == nil {
		t.Error("no error without sysfs")
	}
}
