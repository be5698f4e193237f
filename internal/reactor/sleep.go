package reactor

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// shortSleep is the time for which a sleep keeps its P, the processor of the Go runtime. The
// monitor of the runtime takes the P away from every system call that it sees, however short, of a
// goroutine that was last scheduled more than 10 ms ago, which is always true of a reactor. Getting
// a P back wakes the monitor, which then sees the next sleep: a wake-up of another thread for every
// second I/O at depth 1 (runtime/proc.go of Go 1.26: retake, exitsyscallTryGetP). Without
// shortSleep an I/O with a short sleep costs 1.3 times as much CPU (docs/experiments/tcp.md).
const shortSleep = time.Millisecond

// timeSlice is the time that a reactor that hardly sleeps runs without a call of Gosched. After 10
// ms the monitor preempts it by a signal, at any moment. Until then the monitor takes the P away in
// each call into C that it sees, as in sleeps.
const timeSlice = 8 * time.Millisecond

// yieldBeforeSleep lets other goroutines run.
func (r *Reactor) yieldBeforeSleep(now int64) {
	switch {
	case r.starved:
		// The P stays with a thread in a system call until the monitor of the runtime takes it
		// away, up to 10 ms later. Let waiting goroutines have it first.
	case r.spin.short && now-r.yielded > int64(timeSlice):
		r.yielded = now
	default:
		return
	}
	runtime.Gosched()
}

// yieldWhenBusy lets other goroutines run between polls with work. For a pinned reactor that would
// cost two thread switches, so it waits for the monitor.
func (r *Reactor) yieldWhenBusy() {
	if r.cfg.CPU < 0 && r.clock.now-r.yielded > int64(timeSlice) {
		r.yielded = r.clock.now
		runtime.Gosched()
	}
}

// wait is epoll_wait for at most ms milliseconds, -1 for no limit.
func (r *Reactor) wait(ms int) (int, error) {
	const most = int(shortSleep / time.Millisecond)
	if r.spin.short && !r.starved && (ms < 0 || ms > most) {
		n, errno := sys.EpollWait(r.epfd, r.events[:], most)
		switch { // the other wait finds errors other than a signal, too
		case n > 0:
			return n, nil
		case errno == 0:
			ms = max(ms-most, -1)
		}
	}
	return unix.EpollWait(r.epfd, r.events[:], ms)
}
