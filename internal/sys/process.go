package sys

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// This file changes and reads properties of the process and its threads.

// Serve is the argument that makes the program a target.
const Serve = "serve"

// SIGHUP makes a target read its configuration again. By default it ends the process. So a target
// ignores it from the start, even while DropPrivileges executes the program again, until it is
// about to read its configuration and catches the signal. An ignored signal is not lost, because
// the configuration is still to be read.
func init() {
	if len(os.Args) > 1 && os.Args[1] == Serve {
		signal.Ignore(syscall.SIGHUP)
	}
}

// PreventCoreDumps keeps the memory of the process, which has keys, out of core files. The kernel
// writes no core file and passes none to a program such as systemd-coredump, which a size limit
// would not prevent. Processes of the same user can no longer read the memory either (see
// PR_SET_DUMPABLE in prctl(2)). This lasts until the process ends.
func PreventCoreDumps() {
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // does not fail
}

// MemlockLimit returns the number of bytes that this process may lock in memory and register with
// devices (RLIMIT_MEMLOCK, see getrlimit(2)). limited is false if there is no limit, or if it does
// not apply (CAP_IPC_LOCK, see capabilities(7)).
func MemlockLimit() (bytes uint64, limited bool) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil ||
		limit.Cur == unix.RLIM_INFINITY {
		return 0, false
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&head, &data[0])
	return limit.Cur, err != nil || data[0].Effective&(1<<unix.CAP_IPC_LOCK) == 0
}

// lowNice leaves a thread about a tenth of a processor that others want as well.
const lowNice = 10

// LowerPriority lowers the priority of the calling thread. A thread that already has a lower
// priority, inherited by the process, keeps it. The goroutine must be locked to the thread until
// both end, because threads may not raise their priority.
func LowerPriority() error {
	p, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 minus the nice value (getpriority(2))
	if err != nil || 20-p >= lowNice {
		return err
	}
	return unix.Setpriority(unix.PRIO_PROCESS, 0, lowNice)
}
