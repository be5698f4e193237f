package doctor

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/observed"
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
	at := Target{Reactors: []int{0}, RDMA: true, Sockets: []string{"/run/c.sock"}, StateDir: "/var"}
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

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string][]int{
		"": nil, "3": {3}, "0-2": {0, 1, 2}, "0,2-3,8": {0, 2, 3, 8}, "x": nil,
	} {
		testutil.EqualSlices(t, parseCPUs(text), want, "%q", text)
	}
}

// TestPortCounters: counters in both directories are read, and no other files.
func TestPortCounters(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"mlx5_0/ports/1/counters/port_xmit_wait":        "12\n",
		"mlx5_0/ports/1/hw_counters/np_cnp_sent":        "7\n",
		"mlx5_0/ports/1/hw_counters/lifespan":           "10\n",
		"mlx5_0/ports/1/counters/port_rcv_data":         "N/A (no PMA)\n",
		"rxe0/ports/1/hw_counters/out_of_seq_request":   "18446744073709551615\n",
		"rxe0/ports/1/gid_attrs/ndevs/0":                "1\n",
		"mlx5_0/ports/1/my_counters/port_multicast_rcv": "9\n",
	} {
		name = filepath.Join(dir, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testutil.Must(t, os.WriteFile(name, []byte(text), 0o644))
	}
	want := []observed.PortCounter{
		{Device: "mlx5_0", Port: "1", Counter: "port_xmit_wait", Value: 12},
		{Device: "mlx5_0", Port: "1", Counter: "np_cnp_sent", Value: 7},
		{Device: "rxe0", Port: "1", Counter: "out_of_seq_request", Value: 1<<64 - 1},
	}
	testutil.EqualSlices(t, readPortCounters(dir), want, "")
}

// TestHungPort: firmware that does not answer costs a scrape its timeout, and one goroutine in
// total.
func TestHungPort(t *testing.T) {
	dir := t.TempDir()
	counters := Ports(dir)
	name := filepath.Join(dir, "mlx5_0/ports/1/hw_counters/np_cnp_sent")
	testutil.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	if err := unix.Mkfifo(name, 0o600); err != nil { // nobody writes yet
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	var scrapes sync.WaitGroup
	for range 4 {
		scrapes.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			got := counters(ctx)
			testutil.True(t, got == nil, "%+v", got)
		})
	}
	scrapes.Wait()
	testutil.Until(t, "one goroutine waits", func() bool { // the goroutines of scrapes return
		return runtime.NumGoroutine() <= before+1
	})
	answer := testutil.Value(os.OpenFile(name, os.O_WRONLY, 0))(t)
	testutil.Must(t, os.Remove(name))
	testutil.Must(t, os.WriteFile(name, []byte("7\n"), 0o600))
	testutil.Must(t, answer.Close())
	testutil.Until(t, "it answers", func() bool { return len(counters(t.Context())) == 1 })
}

// TestAlertCountsTheSame: the alert for lost packets uses the counters of doctor.
func TestAlertCountsTheSame(t *testing.T) {
	rules := testutil.Value(os.ReadFile("../../packaging/prometheus/nvmf-target.rules.yml"))(t)
	want := `{counter=~"` + strings.Join(lostPackets, "|") + `"}`
	testutil.True(t, strings.Count(string(rules), want) == 1, "NvmfRDMAPacketsLost is not about %s",
		want)
}

// TestDisks: a file on a partition of a disk. Only the device numbers are real.
func TestDisks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	testutil.Must(t, os.WriteFile(path, nil, 0o600))
	info := testutil.Value(os.Stat(path))(t)
	number := sys.DeviceNumber(info.Sys().(*syscall.Stat_t).Dev)
	if strings.HasPrefix(number, "0:") {
		t.Skip("the file system of temporary files is on no block device")
	}
	const sda = "sys/devices/sda/"
	disk := files{
		sda + "dev": "8:0", sda + "queue/write_cache": "write through",
		sda + "queue/rotational": "0", sda + "queue/scheduler": "[none] mq-deadline",
		sda + "alignment_offset": "0",
		sda + "sda1/dev":         number, sda + "sda1/partition": "1", sda + "sda1/start": "2048",
		sda + "sda1/size": "1000", sda + "sda1/alignment_offset": "0",
		"sys/dev/block/8:0":       "->../../devices/sda",
		"sys/dev/block/" + number: "->../../devices/sda/sda1",
	}
	mounted := func(options string) files {
		return files{
			"proc/self/mountinfo": "27 1 " + number + " / /srv rw - ext4 /dev/sda1 " + options,
		}
	}
	// the second one adds nothing
	at := Target{Storage: []Storage{{path, "namespace 1"}, {path, "namespace 2"}, {"/none", ""}}}
	for _, c := range []check{
		{"no disk", Machine.disks, nil, at, nil},
		{"disk", Machine.disks, disk, at, []string{"ok: sda, below namespace 1: no volatile"}},
		{
			"alignment", Machine.disks,
			with(disk, files{sda + "sda1/alignment_offset": "3584"}), at,
			[]string{
				"warning: sda1, below namespace 1: alignment_offset is 3584 | 1 MiB", "ok: sda",
			},
		},
		{
			"cache", Machine.disks, with(disk, files{sda + "queue/write_cache": "write back"}), at,
			[]string{"note: sda, below namespace 1: the volatile write cache is on"},
		},
		{
			"scheduler", Machine.disks, with(disk, files{sda + "queue/scheduler": "none " +
				"[bfq]"}), at,
			[]string{"note: the I/O scheduler is bfq | echo none > /sys/block/sda/queue/scheduler"},
		},
		{
			"rotational", Machine.disks, with(disk, files{
				sda + "queue/rotational": "1", sda + "queue/scheduler": "none [bfq]",
			}),
			at,
			[]string{"note: rotational"},
		},
		{"options", Machine.fileSystems, mounted("rw,relatime"), at, []string{"ok: no mount " +
			"option"}},
		{
			"journal", Machine.fileSystems, mounted("rw,data=journal"), at,
			[]string{"warning: /srv is mounted with data=journal | data=ordered"},
		},
		{
			"discard", Machine.fileSystems, mounted("rw,discard"), at,
			[]string{"note: /srv is mounted with discard | nodiscard"},
		},
		{"no file", Machine.fileSystems, nil, Target{}, nil},
		{"a device", Machine.fileSystems, nil, Target{Storage: []Storage{{os.DevNull, ""}}}, nil},
	} {
		c.test(t)
	}
}
