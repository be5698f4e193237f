package sys

import "golang.org/x/sys/unix"

// PreventCoreDumps keeps the memory of the process, which has keys, out of core files. The kernel
// writes no core file and passes none to a program such as systemd-coredump, which a size limit
// would not prevent. Processes of the same user can no longer read the memory either (see
// PR_SET_DUMPABLE in prctl(2)). This lasts until the process ends.
func PreventCoreDumps() {
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // does not fail
}
