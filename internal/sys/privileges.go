package sys

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// needed are the capabilities that a target may need later, if it has them. The needs of a reload
// are not known at the start. See docs/adr/0036-process.md.
var needed = capabilities(
	unix.CAP_CHOWN, unix.CAP_FOWNER, // the control socket
	unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, // files and devices of others
	unix.CAP_IPC_LOCK,         // memory of RDMA
	unix.CAP_NET_ADMIN,        // tcp.congestion
	unix.CAP_NET_BIND_SERVICE, // ports below 1024
	unix.CAP_SYS_ADMIN,        // commands to NVMe drives, io_uring where it is restricted
	unix.CAP_SYS_PTRACE,       // open files of other processes: /proc/PID/fd
	unix.CAP_SYS_RAWIO,        // health of SATA drives
)

// capabilitySet has the first 32 capabilities and the others, in the form of capset(2).
type capabilitySet [2]uint32

func capabilities(list ...int) (s capabilitySet) {
	for _, c := range list {
		s[c/32] |= 1 << (c % 32)
	}
	return s
}

// DropPrivileges sets no_new_privs (prctl(2)) on every thread and drops all but the needed
// capabilities, for good and for all programs that it executes. These are attributes of threads,
// which Go cannot change in a program with C code. So, unless all is done, one thread changes its
// own and executes the program again, as the same process. Call it before there is anything to
// lose.
func DropPrivileges() error {
	const again = "_NVMF_TARGET_EXECUTED_ANEW"
	before := os.Getenv(again)
	if err := os.Unsetenv(again); err != nil {
		return err
	}
	runtime.LockOSThread() // if this fails, for good: this thread has changed
	dropped, err := limitThread(needed)
	if err != nil {
		return err
	}
	if !dropped {
		runtime.UnlockOSThread()
		return nil
	}
	if before != "" {
		return errors.New("privileges that were dropped have come back")
	}
	env := append(os.Environ(), again+"=1")
	if self, err := os.Executable(); err == nil {
		_ = syscall.Exec(self, os.Args, env)
	}
	// With the path the process keeps its name. But the directory may be closed to this user, who
	// differs from the one that first executed the program, or the file may be gone.
	err = syscall.Exec("/proc/self/exe", os.Args, env)
	return fmt.Errorf("cannot execute this program again to drop privileges: %w. Mount /proc", err)
}

// WithoutPrivileges runs fn on a thread without capabilities, and so are the processes that fn
// starts. It returns when fn has returned.
func WithoutPrivileges(fn func()) error {
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			// The main thread does not end. Another runs goroutines while it is locked.
			ended <- WithoutPrivileges(fn)
			runtime.UnlockOSThread()
			return
		}
		_, err := limitThread(capabilitySet{})
		if err == nil {
			fn()
		}
		ended <- err
	}()
	return <-ended
}

// limitThread drops all capabilities of the calling thread except keep, and prevents it from
// gaining any by executing a program. The kernel also removes capabilities from the ambient set
// that are no longer inheritable; the bounding set matters only for gaining capabilities. dropped
// reports whether anything has changed.
func limitThread(keep capabilitySet) (dropped bool, err error) {
	set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err == nil && set == 0 {
		dropped, err = true, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err == nil {
		err = unix.Capget(&head, &data[0])
	}
	lowered := false
	for i, d := range data {
		data[i] = unix.CapUserData{
			Effective: d.Effective & keep[i], Permitted: d.Permitted & keep[i],
			Inheritable: d.Inheritable & keep[i],
		}
		lowered = lowered || data[i] != d
	}
	if err == nil && lowered { // seccomp filters of containers may refuse it
		err = unix.Capset(&head, &data[0])
	}
	if err != nil {
		err = fmt.Errorf("drop privileges: %w", err)
	}
	return dropped || lowered, err
}

// CloseOnExec keeps executed programs from inheriting descriptors other than the first three,
// including ones that this process has inherited.
func CloseOnExec() error {
	return unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
}
