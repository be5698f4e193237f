package reactor

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// shortSleep is for how long a sleep keeps its P, the processor of the Go runtime. The runtime's
// monitor takes the P away from every system call that it sees, however short, of a goroutine that
// was last scheduled more than 10 ms ago, as a reactor's always was; getting one back wakes the
// monitor, and that sees the next sleep: a wake-up of another thread for every second I/O at depth
// 1 (runtime/proc.go of Go 1.26: retake, exitsyscallTryGetP). Without it an I/O whose sleep is
// short costs 1.3 times as much CPU (docs/experiments/tcp.md).
const shortSleep = time.Millisecond

// timeSlice is how long a reactor that hardly sleeps runs without a call of Gosched. After 10 ms
// the monitor preempts it by a signal, at any moment, and until it has, takes the P away in each
// call into C that it sees, as in sleeps.
const timeSlice = 8 * time.Millisecond

// yieldBeforeSleep lets other goroutines run.
func (r *Reactor) yieldBeforeSleep(now int64) {
	switch {
	case r.starved:
		// The P stays with a thread in a system call until the runtime's monitor takes it away, up
		// to 10 ms later. Let those that wait have it first.
	case r.spin.short && now-r.yielded > int64(timeSlice):
		r.yielded = now
	default:
		return
	}
	runtime.Gosched()
}

// yieldWhenBusy lets other goroutines run between polls with work. A pinned reactor's thread would
// be switched twice for that: it waits for the monitor.
func (r *Reactor) yieldWhenBusy() {
	if r.cfg.CPU < 0 && r.clock.now-r.yielded > int64(timeSlice) {
		r.yielded = r.clock.now
		runtime.Gosched()
	}
}

// wait is epoll_wait for at most ms milliseconds, -1 for ever.
func (r *Reactor) wait(ms int) (int, error) {
	const most = int(shortSleep / time.Millisecond)
	if r.spin.short && !r.starved && (ms < 0 || ms > most) {
		n, errno := sys.EpollWait(r.epfd, r.events[:], most)
		switch { // an error other than a signal is found by the other wait as well
		case n > 0:
			return n, nil
		case errno == 0:
			ms = max(ms-most, -1)
		}
	}
	return unix.EpollWait(r.epfd, r.events[:], ms)
}
