package sys

import "golang.org/x/sys/unix"

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
