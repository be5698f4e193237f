package inventory

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dswarbrick/smart/ata"
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

func TestMain(m *testing.M) { testutil.Main(m) }

var update = flag.Bool("update", false, "write the golden files")

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
	m.Ask = func(d *Disk) Health {
		asked[d.Name] = true
		switch d.Name {
		case "sda":
			return Health{
				State: Warning, Notes: []string{"3 reallocated sectors"}, Celsius: 34,
				Hours: 20000, Used: -1,
			}
		case "nvme0n1":
			return Health{State: Good, Celsius: 41, Hours: 12, Used: 3}
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
	for _, d := range list {
		path := ""
		if d.Name == "sda" {
			path = filepath.Join(m.ByID, "ata-Samsung_840_S1")
		}
		testutil.Equal(t, d.Path, path, "%s: path", d.Name)
		d.Path = ""
	}
	var out strings.Builder
	for _, d := range list {
		fmt.Fprintf(&out, "%s: %+v, export: %s\n", d.Name, *d, d.Exportable())
	}
	golden(t, "testdata/machine.golden", out.String())
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
		testutil.True(t, used == (d.Name == "nvme0n1") && (!used || d.Exportable() == "in use"),
			"%s: %q", d.Name, d.Uses)
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		testutil.Must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	testutil.True(t, err == nil && got == string(want), "%v\ngot:\n%s\nwant:\n%s", err, got, want)
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
		testutil.True(t, d.Name != "" && (d.Size != 0 || d.Bus != "virtual"), "%+v", d)
	}
	if _, err := (Machine{Sys: "/does/not/exist", Proc: "/proc"}).List(nil); err == nil {
		t.Error("no error without sysfs")
	}
}

func TestDriveOf(t *testing.T) {
	m := machine(t, "testdata/machine.txt")
	for number, want := range map[string]struct {
		id     string
		counts bool
	}{
		"8:1": {"sda", false}, "8:16": {"sdb", false}, // without a serial number
		"65:160": {"sas ST1200MM0129 WFK0ABCD", false},
		"259:0":  {"nvme INTEL SSDPE2KX040T8 BTLJ0000000000000A", true},
	} {
		d := m.DriveOf(number)
		if d == nil {
			t.Errorf("%s has no drive", number)
			continue
		}
		if d.ID() != want.id || d.Counts() != want.counts {
			t.Errorf("%s: %q, counts %t", number, d.ID(), d.Counts())
		}
		was := *d.d
		was.Name = "another" // after it was offline
		path, err := (&Drive{m, &was}).device()
		testutil.True(t, was.Serial == "" || path == "/dev/"+d.d.Name && err == nil,
			"%s: is back at %q, %v", number, path, err)
		was.Serial = "none"
		testutil.Is(t, testutil.Err((&Drive{m, &was}).SMART()), os.ErrNotExist,
			"%s: the health of a drive that is not there", number)
	}
	d := m.DriveOf("7:0")
	testutil.True(t, d == nil, "a loop device is on %+v", d)
}

func TestSMARTOfHealth(t *testing.T) {
	for _, tc := range []struct {
		h    Health
		want nvme.SMARTLog
	}{
		{
			Health{State: Good, Celsius: 30, Hours: 70000, Used: 3},
			nvme.SMARTLog{
				AvailableSpare: 100, Temperature: 303,
				PowerOnHours: nvme.MakeUint128(70000), PercentageUsed: 3,
			},
		},
		{Health{State: Warning, Hours: -1, Used: -1}, nvme.SMARTLog{AvailableSpare: 100}},
		{
			Health{State: Failing, Celsius: -5, Hours: -1, Used: 300},
			nvme.SMARTLog{
				AvailableSpare: 100, Temperature: 268, PercentageUsed: 255,
				CriticalWarning: nvme.SMARTReliability,
			},
		},
	} {
		got := tc.h.smart()
		testutil.True(t, *got == tc.want, "%+v: %+v", tc.h, got)
	}
}

func unhex(t *testing.T, file string) []byte {
	t.Helper()
	text := testutil.Value(os.ReadFile(file))(t)
	var b []byte
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		part := testutil.Value(hex.DecodeString(strings.Join(strings.Fields(line), "")))(t)
		b = append(b, part...)
	}
	return b
}

// TestATA passes the answer of a SATA drive through the parser and printer of the library, and then
// through ataHealth.
func TestATA(t *testing.T) {
	for file, want := range map[string]Health{
		"testdata/smart-good.hex": {State: Good, Celsius: 30, Hours: 21389, Used: -1},
		"testdata/smart-failing.hex": {
			State: Failing,
			Notes: []string{"8 reallocated sectors", "16 sectors cannot be read"}, Celsius: 38,
			Hours: 50123, Used: -1,
		},
	} {
		var page ata.SmartPage
		testutil.Must(t, binary.Read(bytes.NewReader(unhex(t, file)), binary.LittleEndian, &page))
		var out bytes.Buffer
		ata.PrintSMARTPage(page, attributes, &out)
		got, found := ataHealth(&out)
		testutil.True(t, found && got.State == want.State && slices.Equal(got.Notes, want.Notes) &&
			got.Celsius == want.Celsius && got.Hours == want.Hours && got.Used == want.Used,
			"%s: %t %+v, want %+v", file, found, got, want)
	}
	if _, found := ataHealth(
		strings.NewReader("SCSI INQUIRY: ATA\n\nATA IDENTIFY data follows:\n")); found {
		t.Error("attributes where there are none")
	}
}

func TestNVMe(t *testing.T) {
	base := nvme.SMARTLog{
		Temperature: 273 + 41, AvailableSpare: 100, PercentageUsed: 3,
		PowerOnHours: nvme.MakeUint128(1234),
	}
	for name, tc := range map[string]struct {
		change func(*nvme.SMARTLog)
		want   string
	}{
		"good":      {func(*nvme.SMARTLog) {}, "{good [] 41 1234 3}"},
		"no sensor": {func(l *nvme.SMARTLog) { l.Temperature = 0 }, "{good [] 0 1234 3}"},
		"failing": {
			func(l *nvme.SMARTLog) {
				l.CriticalWarning = nvme.SMARTReliability | nvme.SMARTReadOnly | nvme.SMARTSpareLow
				l.AvailableSpare = 2
			}, "{failing [reliability degraded read-only 2% spare left] 41 1234 3}",
		},
		"errors": {
			func(l *nvme.SMARTLog) { l.MediaErrors = nvme.MakeUint128(7) },
			"{warning [7 media errors] 41 1234 3}",
		},
		"old": {
			func(l *nvme.SMARTLog) { l.PercentageUsed = 120 },
			"{warning [worn out] 41 1234 120}",
		},
	} {
		l := base
		tc.change(&l)
		testutil.Equal(t, fmt.Sprint(nvmeHealth(&l)), tc.want, "%s", name)
	}
	got := fmt.Sprint(unknown("only root may ask"))
	testutil.Equal(t, got, "{unknown [only root may ask] 0 -1 -1}", "unknown")
}

// TestAsk: missing devices are errors, and nothing panics.
func TestAsk(t *testing.T) {
	for _, d := range []Disk{
		{Name: "none", Bus: "nvme"},
		{Name: "none", Bus: "sata"},
		{Name: "none", Bus: "sas"},
		{Name: "null", Bus: "nvme"},
		{Name: "null", Bus: "sata"},
	} {
		h := ask(&d)
		testutil.True(t, h.State == Unknown && len(h.Notes) == 1, "%+v: %+v", d, h)
	}
}
