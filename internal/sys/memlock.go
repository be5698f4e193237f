package sys

import "golang.org/x/sys/unix"

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
