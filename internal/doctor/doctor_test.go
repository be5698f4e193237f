package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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

func TestCPUs(t *testing.T) {
	const siblings = "/topology/thread_siblings_list"
	pinned := Target{Reactors: []int{2, 3}}
	free := Target{Reactors: []int{-1, -1}}
	twoNodes := files{
		nodeDir + "/node0/cpulist": "0-1", nodeDir + "/node1/cpulist": "2-3",
		nodeDir + "/online": "0-1",
	}
	governors := func(a, b string) files {
		return files{
			cpuDir + "/online": "1-2", cpuDir + "/cpu1/cpufreq/scaling_governor": a,
			cpuDir + "/cpu2/cpufreq/scaling_governor": b,
		}
	}
	for _, c := range []check{
		{"no clock", Machine.clock, nil, Target{}, nil},
		{
			"tsc", Machine.clock,
			files{clockSource + "/current_clocksource": "tsc"},
			Target{},
			[]string{"ok: tsc"},
		},
		{
			"hpet", Machine.clock,
			files{
				clockSource + "/current_clocksource":   "hpet",
				clockSource + "/available_clocksource": "hpet acpi_pm",
			},
			Target{},
			[]string{"warning: hpet | dmesg"},
		},
		{
			"tsc is there", Machine.clock,
			files{
				clockSource + "/current_clocksource":   "acpi_pm",
				clockSource + "/available_clocksource": "tsc acpi_pm",
			},
			Target{},
			[]string{"warning: acpi_pm | echo tsc > /sys/devices/system/clocksource/"},
		},
		{
			"no governor", Machine.governor,
			files{cpuDir + "/online": "0"},
			Target{},
			[]string{"ok: none"},
		},
		{
			"performance", Machine.governor, governors("performance", "performance"),
			Target{},
			[]string{"ok: performance"},
		},
		{
			"powersave", Machine.governor, governors("performance", "powersave"),
			Target{},
			[]string{"note: powersave on CPU 2 | cpupower"},
		},
		{
			"powersave elsewhere", Machine.governor, governors("powersave", "performance"), pinned,
			[]string{"ok: performance"},
		},
		{"nothing isolated", Machine.isolation, files{cpuDir + "/isolated": ""}, free, nil},
		{
			"isolated", Machine.isolation,
			files{cpuDir + "/isolated": "1-3"},
			pinned,
			[]string{"ok: 1-3"},
		},
		{
			"not isolated", Machine.isolation,
			files{cpuDir + "/isolated": "1-2"},
			pinned,
			[]string{"note: not isolated: 3 | isolcpus=2,3"},
		},
		{
			"not pinned", Machine.isolation,
			files{cpuDir + "/isolated": "2-3"},
			free,
			[]string{"note: not pinned | reactors.cpus: [2, 3]"},
		},
		{"cores unknown", Machine.cores, nil, free, nil},
		{
			"cores", Machine.cores,
			files{
				cpuDir + "/cpu2" + siblings: "0,2", cpuDir + "/cpu3" + siblings: "1,3",
			},
			pinned,
			[]string{"ok: "},
		},
		{
			"threads", Machine.cores,
			files{
				cpuDir + "/cpu2" + siblings: "2-3", cpuDir + "/cpu3" + siblings: "2-3",
			},
			pinned,
			[]string{"warning: CPUs 2 and 3 | reactors.cpus"},
		},
		{
			"one node", Machine.numa,
			files{
				nodeDir + "/node0/cpulist":                        "0-3",
				"sys/class/infiniband/mlx5_0/device/numa_node":    "0",
				"sys/class/net/eth0/device/numa_node":             "0",
				"sys/class/net/eth0/operstate":                    "up",
				"sys/class/net/unconnected/device/numa_node/none": "",
			},
			pinned, nil,
		},
		{
			"nodes", Machine.numa, with(twoNodes, files{
				"sys/class/infiniband/mlx5_0/device/numa_node": "1",
				"sys/class/net/eth0/device/numa_node":          "0",
				"sys/class/net/eth0/operstate":                 "up",
				"sys/class/net/eth1/device/numa_node":          "0",
				"sys/class/net/eth1/operstate":                 "down",
				"sys/class/net/eth2/device/numa_node":          "-1",
				"sys/class/net/eth2/operstate":                 "up",
			}),
			pinned,
			[]string{"ok: mlx5_0", "note: eth0 is on NUMA node 0 | reactors.cpus among 0-1"},
		},
	} {
		c.test(t)
	}
}

func TestRDMA(t *testing.T) {
	const port = infiniband + "/rxe0/ports/1"
	good := files{
		infiniband + "/rxe0/node_type": "1: CA",
		port + "/state":                "4: ACTIVE", port + "/link_layer": "Ethernet",
		port + "/rate":                         "100 Gb/sec (4X EDR)",
		port + "/gid_attrs/types/0":            "IB/RoCE v1",
		port + "/gid_attrs/types/1":            "RoCE v2",
		port + "/gid_attrs/types/2":            "",
		port + "/gid_attrs/ndevs/0":            "eth0",
		port + "/gid_attrs/ndevs/1":            "eth0",
		"sys/class/net/eth0/mtu":               "9000",
		port + "/hw_counters/out_of_sequence":  "0",
		port + "/counters/port_xmit_wait":      "N/A (no PMA)",
		port + "/counters/port_xmit_discards":  "0",
		port + "/hw_counters/rx_read_requests": "7",
		"dev/infiniband/rdma_cm":               "", "dev/infiniband/uverbs0": "",
	}
	without := func(name string) files {
		list := maps.Clone(good)
		delete(list, name)
		return list
	}
	state, gid, mtu := "ok: rxe0 port 1: 4: ACTIVE, Ethernet, 100 Gb/sec",
		"ok: rxe0 port 1: IB/RoCE v1, RoCE v2", "ok: eth0 has an MTU of 9000"
	quiet := "ok: no counter"
	needed := Target{RDMA: true}
	for _, c := range []check{
		{"no device", Machine.rdmaFiles, nil, Target{}, []string{"ok: no RDMA device"}},
		{
			"no device, wanted", Machine.rdmaFiles, nil, needed,
			[]string{"warning: no RDMA device | rdma link add"},
		},
		{"files", Machine.rdmaFiles, good, needed, []string{"ok: rdma_cm, uverbs0"}},
		{
			"no rdma_cm", Machine.rdmaFiles, without("dev/infiniband/rdma_cm"), needed,
			[]string{"warning: no /dev/infiniband/rdma_cm | modprobe rdma_ucm"},
		},
		{
			"no uverbs", Machine.rdmaFiles, without("dev/infiniband/uverbs0"), needed,
			[]string{"warning: no /dev/infiniband/uverbs* | modprobe ib_uverbs"},
		},
		{
			"no permission", Machine.rdmaFiles,
			with(good, files{"dev/infiniband/uverbs0": "denied"}),
			needed,
			[]string{"warning: uverbs0: permission denied | group"},
		},
		{"no ports", Machine.rdmaPorts, nil, needed, nil},
		{"port", Machine.rdmaPorts, good, needed, []string{state, gid, mtu, quiet}},
		{
			"port down", Machine.rdmaPorts, with(good, files{port + "/state": "1: DOWN"}), needed,
			[]string{"warning: 1: DOWN | ip link set eth0 up", gid, mtu, quiet},
		},
		{
			"iWARP", Machine.rdmaPorts, with(good, files{infiniband + "/rxe0/node_type": "4: " +
				"RNIC"}),
			needed,
			[]string{state, quiet},
		},
		{
			"RoCE v1", Machine.rdmaPorts, without(port + "/gid_attrs/types/1"), needed,
			[]string{state, "warning: only GIDs of the type IB/RoCE v1", mtu, quiet},
		},
		{
			"no GID", Machine.rdmaPorts, with(good, files{
				port + "/gid_attrs/types/0": "", port + "/gid_attrs/types/1": "",
			}),
			needed,
			[]string{state, "warning: has no GID | ip address add", mtu, quiet},
		},
		{
			"no counters", Machine.rdmaPorts,
			files{port + "/state": "4: ACTIVE"},
			needed,
			[]string{"ok: rxe0 port 1: 4: ACTIVE"},
		},
		{
			"MTU", Machine.rdmaPorts, with(good, files{"sys/class/net/eth0/mtu": "1500"}), needed,
			[]string{state, gid, "note: packets carry up to 1024 bytes | ip link set eth0 " +
				"mtu", quiet},
		},
		{
			"congestion", Machine.rdmaPorts, with(good, files{
				port + "/hw_counters/out_of_sequence": "12", port + "/counters/port_xmit_wait": "3",
			}),
			needed,
			[]string{state, gid, mtu, "note: port_xmit_wait=3 out_of_sequence=12 | rdma statistic"},
		},
	} {
		c.test(t)
	}
	// the MTU at which the kernel takes the next size
	for wire, data := range map[int]int{4192: 4096, 4191: 2048, 1120: 1024, 1119: 512, 300: 256} {
		m := machine(t, with(good, files{"sys/class/net/eth0/mtu": fmt.Sprint(wire)}))
		found := m.rdmaPorts(needed)[2].Found
		if !strings.Contains(found, fmt.Sprintf("up to %d bytes", data)) {
			t.Errorf("MTU %d: %s", wire, found)
		}
	}
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
	at := Target{Sockets: []string{"/run/user/1/c.sock", socket}, StateFile: "/var/lib/x/state"}
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
		{"state", Machine.state, files{"var/x": ""}, at, []string{"ok: /var/lib/x/state"}},
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

func TestInitiator(t *testing.T) {
	host := files{
		"sys/module/nvme_core/parameters/multipath": "Y",
		"etc/nvme/hostnqn":                          "nqn.2014-08.org.nvmexpress:uuid:1",
		"etc/nvme/hostid":                           "562d2020-2249-4c07-907c-fccf2e12f53e",
		"etc/udev/rules.d/" + udevRule:              "",
	}
	for _, c := range []check{
		{"no host", Machine.multipath, nil, Target{}, nil},
		{"no host names", Machine.hostNames, nil, Target{}, nil},
		{"no host rule", Machine.udev, nil, Target{}, nil},
		{"multipath", Machine.multipath, host, Target{}, []string{"ok: =Y"}},
		{
			"no multipath", Machine.multipath,
			files{"sys/module/nvme_core/parameters/multipath": "N"},
			Target{},
			[]string{"warning: =N | nvme_core.multipath=Y"},
		},
		{"names", Machine.hostNames, host, Target{}, []string{"ok: hostnqn", "ok: hostid"}},
		{
			"no names", Machine.hostNames,
			files{"etc/nvme/hostid": "12"},
			Target{},
			[]string{
				"warning: /etc/nvme/hostnqn is missing | gen-hostnqn",
				"warning: is not valid: 12 | uuidgen",
			},
		},
		{"rule", Machine.udev, host, Target{}, []string{"ok: /etc/udev/rules.d/70-nvmf-target"}},
		{
			"no rule", Machine.udev,
			files{"sys/module/nvme_fabrics/x": ""},
			Target{},
			[]string{"note: is not installed | packaging/udev"},
		},
	} {
		c.test(t)
	}
}

// TestDisks: a file on a partition of a disk, which are those of this machine by their number only.
func TestDisks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
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

// TestRun: this machine can be checked, and a machine without anything.
func TestRun(t *testing.T) {
	at := Target{
		Reactors: []int{0}, RDMA: true, Sockets: []string{"/run/c.sock"}, StateFile: "/var/state",
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
		if got := Worst(list[:n]); got != want {
			t.Errorf("of %d: %s, want %s", n, got, want)
		}
	}
}

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string][]int{
		"": nil, "3": {3}, "0-2": {0, 1, 2}, "0,2-3,8": {0, 2, 3, 8}, "x": nil,
	} {
		if got := parseCPUs(text); !slices.Equal(got, want) {
			t.Errorf("%q: %v", text, got)
		}
	}
}
