// Package doctor checks whether a machine is suitable for the target, and whether the configuration
// is suitable for the machine. It only reads (sysfs, procfs, files below /etc, the rights of this
// process), needs neither a running target nor root, and suggests fixes. Load evaluates the
// counters of a running target.
package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/uring"
)

// Severity is the severity of a finding.
type Severity string

const (
	// OK means that there is nothing to do.
	OK Severity = "ok"
	// Note is a fact that costs performance or is good to know; it may be intended.
	Note Severity = "note"
	// Warning is something that works badly, or not for every user or host.
	Warning Severity = "warning"
	// Error is something that keeps the target, or a part of it, from working.
	Error Severity = "error"
)

var severities = []Severity{OK, Note, Warning, Error}

// Finding is the result of one check.
type Finding struct {
	// Check is the name of the check: "clock".
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Found describes the fact, with its value.
	Found string `json:"found"`
	// Why is a sentence about the importance, Fix the command or key; "" if Severity is OK.
	Why string `json:"why,omitempty"`
	Fix string `json:"fix,omitempty"`
}

// Worst returns the highest severity among findings, OK if there are none.
func Worst(findings []Finding) Severity {
	worst := 0
	for _, f := range findings {
		worst = max(worst, slices.Index(severities, f.Severity))
	}
	return severities[worst]
}

func ok(check, format string, args ...any) Finding {
	return Finding{Check: check, Severity: OK, Found: fmt.Sprintf(format, args...)}
}

// Target has the requirements of the configuration; the zero value stands for none.
type Target struct {
	// Reactors has the CPU of each reactor, -1 for one that is not pinned.
	Reactors []int
	// Memory is the memory that RDMA registers for all reactors, in bytes.
	Memory int64
	// RDMA: there are listeners for RDMA. Device: one of them needs an RDMA device. Soft: none uses
	// one. IWARP: all do iWARP without a device.
	RDMA, Device, Soft, IWARP bool
	// Listeners are the listeners with a TCP port: for TCP, and for iWARP without a device.
	Listeners []Listener
	Storage   []Storage
	// Sockets are the control sockets to look at, first the one that this user's target would have.
	Sockets []string
	// StateDir is the state directory, "" for none.
	StateDir string
}

// Storage is a file or block device and its purpose: "namespace 1 of nqn...".
type Storage struct{ Path, User string }

// Machine has the sources of the facts.
type Machine struct {
	// Root is the directory with /sys, /proc, /dev and /etc of the machine.
	Root string
	// Access is access(2) with the effective rights of this process.
	Access func(path string, mode uint32) error
	// Memlock returns the bytes that this process may lock, see sys.MemlockLimit.
	Memlock func() (bytes uint64, limited bool)
	// IOUring makes and closes a small io_uring.
	IOUring func() error
	// FeaturesOff and UDPPortsHashed describe an interface, see the functions of package sys.
	FeaturesOff    func(name string, features ...string) ([]string, error)
	UDPPortsHashed func(name string) (bool, error)
}

// Linux returns this machine.
func Linux() Machine {
	return Machine{
		Root: "/", Memlock: sys.MemlockLimit, IOUring: uring.Available,
		FeaturesOff: sys.FeaturesOff, UDPPortsHashed: sys.UDPPortsHashed,
		Access: func(path string, mode uint32) error {
			return unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS)
		},
	}
}

// Run makes all checks.
func (m Machine) Run(t Target) (list []Finding) {
	for _, check := range []func(Machine, Target) []Finding{
		Machine.memlock, Machine.ioUring,
		Machine.clock, Machine.governor, Machine.isolation, Machine.cores, Machine.numa,
		Machine.rdmaFiles, Machine.rdmaPorts,
		Machine.listeners, Machine.disks, Machine.fileSystems,
		Machine.control, Machine.state,
		Machine.multipath, Machine.hostNames, Machine.udev,
	} {
		list = append(list, check(m, t)...)
	}
	return list
}

func (m Machine) path(name ...string) string {
	return filepath.Join(append([]string{m.Root}, name...)...)
}

// read returns the content of a file without surrounding white space, "" if it cannot be read.
func (m Machine) read(name ...string) string { return sys.Attribute(m.path(name...)) }

// list returns the names in a directory, sorted; none if it cannot be read.
func (m Machine) list(dir ...string) (names []string) {
	entries, _ := os.ReadDir(m.path(dir...))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (m Machine) exists(name ...string) bool {
	_, err := os.Stat(m.path(name...))
	return err == nil
}

// holder names the process that has a socket open, "" if it cannot be seen.
func (m Machine) holder(inode string) (name, program string) {
	for _, pid := range m.list("proc") {
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		for _, fd := range m.list("proc", pid, "fd") {
			link, _ := os.Readlink(m.path("proc", pid, "fd", fd))
			if link == "socket:["+inode+"]" {
				program = m.read("proc", pid, "comm")
				return fmt.Sprintf("process %s (%s)", pid, program), program
			}
		}
	}
	return "", ""
}

// parseCPUs parses a list of CPUs in the format of the kernel: "0-3,8".
func parseCPUs(text string) (cpus []int) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		for cpu := from; err1 == nil && err2 == nil && cpu <= to; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// cpuNames formats CPUs for people: "2, 3".
func cpuNames(cpus []int) string {
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(cpus)), ", "), "[]")
}
