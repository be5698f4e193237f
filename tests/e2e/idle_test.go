package e2e

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestIdle: with 16 connected queues and keep alives, this process, initiators included, uses less
// than 1 % of a CPU. CPU time is not wall time, so a busy machine does not matter.
func TestIdle(t *testing.T) {
	eachVariant(t, nil, func(t *testing.T, h *harness, v variant) {
		for range 4 {
			c := h.connect(v, func(o *host.Options) { o.KATO = 5 * time.Second })
			for qid := uint16(1); qid <= 4; qid++ {
				h.open(c, qid, 128)
			}
		}
		wantIdle(t, 2*time.Second, 0.01)
	})
}

// TestIdleMany: with 1024 connected queues of 16 hosts it uses less than 0.5 %.
func TestIdleMany(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without the race detector, whose CPU time would count")
	}
	for _, v := range []variant{{name: "tcp"}, {name: "rdma", isRDMA: true}} {
		t.Run(v.name, func(t *testing.T) {
			h := newHarness(t, options{rdma: func(c *rdma.Config) { c.MaxQueuesPerHost = 2048 }})
			for range 16 {
				c := h.connect(v, func(o *host.Options) { o.KATO = 10 * time.Second })
				for qid := uint16(1); qid <= 64; qid++ {
					h.open(c, qid, 32)
				}
			}
			wantIdle(t, 5*time.Second, 0.005)
		})
	}
}

// wantIdle fails if this process uses more than a share of a CPU in each of several rounds. The
// first may include leftovers of connecting, such as a garbage collection; on a busy machine, with
// cold caches, the same work sometimes takes two or three times as long.
func wantIdle(t *testing.T, window time.Duration, share float64) {
	t.Helper()
	const rounds = 8
	for round := 1; ; round++ {
		before := cpuTime(t)
		time.Sleep(window)
		used := cpuTime(t) - before
		t.Logf("%v of CPU in %v", used, window)
		if used.Seconds() <= window.Seconds()*share {
			return
		}
		if round == rounds {
			t.Fatalf("an idle target used more than %v %% of a CPU in each of %d rounds", share*100,
				rounds)
		}
	}
}

// cpuTime is the user and system time this process has used.
func cpuTime(t *testing.T) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
