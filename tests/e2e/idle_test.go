package e2e

import (
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestIdle: with 16 connected queues and keep alives, this process, including initiators, uses less
// than 1 % of a CPU. CPU time is not wall time, so a busy machine does not matter.
func TestIdle(t *testing.T) {
	testutil.Soak(t, "it measures processor time")
	eachVariant(t, nil, func(t *testing.T, h *Env, v Variant) {
		for range 4 {
			c := h.Dial(v, func(o *host.Options) { o.KATO = 5 * time.Second })
			for qid := uint16(1); qid <= 4; qid++ {
				h.Open(c, qid, 128)
			}
		}
		wantIdle(t, 2*time.Second, 0.01, 0)
	})
}

// TestIdleMany: with 1024 connected queues of 16 hosts it uses less than 0.5 %.
func TestIdleMany(t *testing.T) {
	testutil.Soak(t, "it measures processor time")
	if raceEnabled {
		t.Skip("needs a build without the race detector, whose CPU time would count")
	}
	bare := bareSockets(t, 16, 5*time.Second) // a keep alive each 5 s of 16 hosts
	for _, v := range []Variant{{Name: "tcp"}, {Name: "rdma", IsRDMA: true}} {
		t.Run(v.Name, func(t *testing.T) {
			h := New(t, Options{RDMA: func(c *rdma.Config) { c.PerHost = 2048 }})
			for range 16 {
				c := h.Dial(v, func(o *host.Options) { o.KATO = 10 * time.Second })
				for qid := uint16(1); qid <= 64; qid++ {
					h.Open(c, qid, 32)
				}
			}
			wantIdle(t, 5*time.Second, 0.005, bare)
		})
	}
}

// wantIdle fails if this process uses more than a share of a CPU in each of several rounds. The
// first round may include leftovers of connecting, such as a garbage collection. On a busy machine
// with cold caches the same work sometimes takes two or three times as long. Where a wake-up is
// expensive, as in some virtual machines, the process may use 2.5 times as much as bare sockets,
// since it includes the hosts, which wait in system calls as well.
func wantIdle(t *testing.T, window time.Duration, share float64, bare time.Duration) {
	t.Helper()
	const rounds = 8
	limit := max(time.Duration(float64(window)*share), 5*bare/2)
	for round := 1; ; round++ {
		before := cpuTime(t)
		time.Sleep(window)
		used := cpuTime(t) - before
		t.Logf("%v of CPU in %v, of bare sockets %v", used, window, bare)
		if used <= limit {
			return
		}
		testutil.MustTrue(t, round != rounds,
			"an idle target used more than %v of CPU in each of %d rounds", limit, rounds)
	}
}

// bareSockets returns the CPU time of messages over sockets that arrive like keep alives, evenly
// spread over the window. As in the target, one thread waits for all of them in a system call.
func bareSockets(t *testing.T, messages int, window time.Duration) time.Duration {
	t.Helper()
	pair := testutil.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	host := os.NewFile(uintptr(pair[0]), "host")
	defer host.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer unix.Close(pair[1])
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		wait := []unix.PollFd{{Fd: int32(pair[1]), Events: unix.POLLIN}}
		for buf := make([]byte, 72); ; {
			if _, err := unix.Poll(wait, -1); err != nil && err != unix.EINTR {
				return
			}
			n, err := unix.Read(pair[1], buf)
			if n <= 0 || err != nil {
				return
			}
			if _, err := unix.Write(pair[1], buf[:16]); err != nil {
				return
			}
		}
	}()
	defer func() { <-ended }()
	defer host.Close()
	before := cpuTime(t)
	for range messages {
		time.Sleep(window / time.Duration(messages))
		testutil.Value(host.Write(make([]byte, 72)))(t)
		testutil.Value(host.Read(make([]byte, 16)))(t)
	}
	return cpuTime(t) - before
}

// cpuTime returns the user and system time of this process.
func cpuTime(t *testing.T) time.Duration {
	var u unix.Rusage
	testutil.Must(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
