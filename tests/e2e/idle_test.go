package e2e

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestIdle: with 16 connected queues and keep-alives going on, everything in this process, initiators included, takes less than 1 % of
// a CPU. CPU time is not wall time, so a busy machine does not matter.
func TestIdle(t *testing.T) {
	eachWay(t, nil, func(t *testing.T, r *rig, w way) {
		for range 4 {
			c := r.connect(w, func(o *host.Options) { o.KATO = 5 * time.Second })
			for qid := uint16(1); qid <= 4; qid++ {
				r.open(c, qid, 128)
			}
		}
		const window = 2 * time.Second
		time.Sleep(500 * time.Millisecond) // what connecting left behind, for instance a garbage collection
		before := cpuTime(t)
		time.Sleep(window)
		if used := cpuTime(t) - before; used > window/100 {
			t.Errorf("an idle target with 16 queues used %v of CPU in %v", used, window)
		} else {
			t.Logf("%v of CPU in %v", used, window)
		}
	})
}

// cpuTime is the user and system time this process has used.
func cpuTime(t *testing.T) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
