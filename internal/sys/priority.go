package sys

import "golang.org/x/sys/unix"

// lowNice leaves a thread a tenth of a processor that others want as well.
const lowNice = 10

// LowerPriority makes the calling thread give way to others. One that gives way more already, since
// the process was started so, stays as it is. The goroutine must be locked to the thread until it
// ends, and the thread with it, because threads may not raise their priority.
func LowerPriority() error {
	p, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 less the nice value (getpriority(2))
	if err != nil || 20-p >= lowNice {
		return err
	}
	return unix.Setpriority(unix.PRIO_PROCESS, 0, lowNice)
}
