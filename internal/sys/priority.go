package sys

import "golang.org/x/sys/unix"

// lowNice leaves a thread a tenth of a processor that others want as well.
const lowNice = 10

// LowerPriority makes the calling thread give way to others. The goroutine must be locked to it
// until it ends, and the thread with it, because threads may not raise their priority.
func LowerPriority() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, lowNice) }
