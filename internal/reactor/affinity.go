package reactor

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// pin moves the calling thread to one CPU; unpin undoes it.
func pin(cpu int) (unpin func(), err error) {
	var old, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		return nil, fmt.Errorf("read the CPU affinity: %w", err)
	}
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("pin to CPU %d: %w (this process may use %s)", cpu, err,
			cpuList(&old))
	}
	return func() { _ = unix.SchedSetaffinity(0, &old) }, nil
}

// singleCPU reports whether the machine has one CPU. The number of CPUs of this process does not
// matter, because events for the loop happen on any of them.
func singleCPU() bool { return listsOneCPU("/sys/devices/system/cpu/online") }

// listsOneCPU reports whether the list of CPUs in a file, such as "0-3,5", has one entry. Without
// such a file it reports whether the process has one CPU.
func listsOneCPU(name string) bool {
	online, err := os.ReadFile(name)
	if err != nil {
		return runtime.NumCPU() == 1
	}
	return !strings.ContainsAny(string(online), "-,")
}

// yield lets other threads of the machine run, if any waits for a CPU. The system call does not
// block, so the scheduler of the Go runtime need not know.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// cpuList formats a set: "CPUs 0 1 5".
func cpuList(set *unix.CPUSet) string {
	s := "CPUs"
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			s += fmt.Sprint(" ", cpu)
		}
	}
	return s
}
