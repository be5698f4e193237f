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
		for round := 1; ; round++ { // the first may see what connecting left behind, for instance a garbage collection
			before := cpuTime(t)
			time.Sleep(window)
			used := cpuTime(t) - before
			t.Logf("%v of CPU in %v", used, window)
			if used <= window/100 {
				return
			}
			if round == 3 {
				t.Fatalf("an idle target with 16 queues used more than 1 %% of a CPU in each of %d rounds", round)
			}
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
