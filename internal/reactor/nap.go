package reactor

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// nap is how long a sleep keeps its processor of the Go runtime. The runtime's monitor takes the
// processor away from every sleep that it sees, however short, of a goroutine that was last
// scheduled more than 10 ms ago, as a reactor's always was; to get one back wakes the monitor, and
// that sees the next sleep: a wake-up of another thread for every second I/O at depth 1
// (runtime/proc.go of Go 1.26: retake, exitsyscallTryGetP).
const nap = time.Millisecond

// turn is how long a reactor that hardly sleeps goes without giving way. After 10 ms the runtime's
// monitor makes it, by a signal and at any moment, and as long as it has not, takes the processor
// away from each call into C that it sees, as from sleeps.
const turn = 8 * time.Millisecond

// giveWay lets other goroutines run, before a sleep.
func (r *Reactor) giveWay(now int64) {
	switch {
	case r.starved:
		// A processor stays with a thread in a system call until the runtime's monitor takes it
		// away, up to 10 ms later. Let those that wait have it first.
	case r.spin.brief && now-r.gave > int64(turn):
		r.gave = now
	default:
		return
	}
	runtime.Gosched()
}

// endTurn lets other goroutines run in the midst of work. A pinned reactor's thread would be
// switched twice for that: it waits for the monitor.
func (r *Reactor) endTurn() {
	if r.cfg.CPU < 0 && r.clock.now-r.gave > int64(turn) {
		r.gave = r.clock.now
		runtime.Gosched()
	}
}

// wait is epoll_wait for at most ms milliseconds, -1 for ever.
func (r *Reactor) wait(ms int) (int, error) {
	const most = int(nap / time.Millisecond)
	if r.spin.brief && !r.starved && (ms < 0 || ms > most) {
		n, errno := sys.EpollWait(r.epfd, r.events[:], most)
		switch { // what it fails with, the other wait finds as well, unless it was a signal
		case n > 0:
			return n, nil
		case errno == 0:
			ms = max(ms-most, -1)
		}
	}
	return unix.EpollWait(r.epfd, r.events[:], ms)
}
