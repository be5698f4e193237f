package sys

import "golang.org/x/sys/unix"

// PreventCoreDumps keeps the memory of the process, which has keys, out of core files: the kernel
// writes none, also not to a program as systemd-coredump, which a limit of their size would leave
// to that. Nor can processes of the same user read the memory any more (see PR_SET_DUMPABLE in
// prctl(2)). It stays so until the process ends.
func PreventCoreDumps() {
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // does not fail
}
