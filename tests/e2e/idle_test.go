package e2e

import (
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
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
			h := New(t, Options{RDMA: func(c *rdma.Config) { c.MaxQueuesPerHost = 2048 }})
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

// TestLatencyOfSlowDevice: on both transports, the time of a device counts for the stage backend,
// no command takes longer than all of them, and the stages add up. A slow machine makes no
// difference, except to the share of the device, which make soak checks.
func TestLatencyOfSlowDevice(t *testing.T) {
	faulty(t, func(t *testing.T, h *Env, v Variant, g *backendtest.Faulty) {
		const hold = 20 * time.Millisecond
		c := h.Dial(v)
		q := h.Open(c, 1, 17)
		buf := h.Buffer(c, q.Depth()*4096)
		begun := time.Now()
		g.Hold(nil)
		outstanding(t, h, q, buf, g)
		<-time.After(hold)
		g.Release()
		collectAll(t, q, nvme.Success)
		// The last ones are counted when the host has acknowledged them.
		h.Until("all commands are counted", func() bool {
			n := 0
			list := testutil.Value(h.Target.Latencies(testutil.Context(t)))(h.T)
			for _, l := range list {
				n += int(l.IOs)
			}
			return n == q.Depth()
		})
		took := time.Since(begun)
		list := testutil.Value(h.Target.Latencies(testutil.Context(t)))(h.T)
		for _, l := range list {
			sum := int64(0)
			for i := range l.Stages {
				sum += l.Stages[i].Sum()
			}
			backend := &l.Stages[fabric.StageBackend]
			if l.HostNQN != HostNQN || l.NSID != 1 || sum != l.Total.Sum() ||
				backend.Quantile(0) < hold.Nanoseconds()*95/100 ||
				l.Total.Max() > took.Nanoseconds() ||
				testutil.Soaking() && 2*backend.Sum() < sum {
				t.Errorf("%s of %v: %d to %d ns in the backend, %d ns in all, at most %d of %v",
					l.Operation, l.HostNQN, backend.Quantile(0), backend.Max(), sum, l.Total.Max(),
					took)
			}
		}
		testutil.Equal(t, len(list), 2, "operations")
	})
}

// TestZeroAllocation counts all allocations of the process - target, host, fake fabric - while a
// queue is kept full. After a warm-up, I/O allocates nothing.
func TestZeroAllocation(t *testing.T) {
	eachVariant(t, nil, func(t *testing.T, h *Env, v Variant) {
		if v.RDMA.Invalidate {
			t.Skip("the host allocates: it registers memory for each command")
		}
		if raceEnabled && v.IsRDMA {
			t.Skip("needs a build without the race detector, with which the completion channels " +
				"of verbstest allocate")
		}
		c := h.Dial(v)
		q := h.Open(c, 1, 33)
		for _, size := range []int{512, 4096, 131072} {
			ios := min(256, 4<<20/size)
			buf := h.Buffer(c, q.Depth()*size)
			for _, write := range []bool{false, true} {
				var op host.Op
				var done [64]host.Completion
				i := 0
				run := func() {
					for range ios {
						for q.Free() == 0 {
							testutil.Must(t, collect(q, done[:]))
						}
						i++
						data := buf[i%q.Depth()*size:][:size]
						if slba := uint64(i % 100 * size / 512); write {
							op.Write(1, slba, uint32(size/512), data, 0)
						} else {
							op.Read(1, slba, uint32(size/512), data)
						}
						testutil.Value(q.Submit(&op))(t)
					}
					for q.Outstanding() > 0 {
						testutil.Must(t, collect(q, done[:]))
					}
				}
				run() // buffers, free lists and tables grow
				run()
				// One run per sample, since timers allocate occasionally.
				testutil.Equal(t, testutil.AllocsPerRun(1, run), 0,
					"%d bytes, write %t allocations in %d commands", size, write, ios)
			}
		}
	})
}

// collect polls once and waits if there is no completion.
func collect(q *host.Queue, done []host.Completion) error {
	n, err := q.Poll(done)
	if err != nil {
		return err
	}
	for i := range done[:n] {
		if st := done[i].Status(); !st.OK() {
			return st
		}
	}
	if n == 0 {
		return q.Wait(time.Second)
	}
	return nil
}
