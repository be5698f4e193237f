package e2e

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestTLSCost measures reads with and without TLS by turns, on one reactor: IOPS, and processor
// time of the target. It tells ratios, TLS to plain: the least, the median and the largest of the
// rounds. It runs only by itself: NVMF_TLS_COST has the number of rounds.
func TestTLSCost(t *testing.T) {
	rounds := 0
	if _, err := fmt.Sscan(os.Getenv("NVMF_TLS_COST"), &rounds); err != nil {
		t.Skip("set NVMF_TLS_COST to the number of rounds, in a quiet moment")
	}
	h := newHarness(t, options{tcp: func(c *tcp.Config) {
		requireTLS(c)
		c.TLS = func(uint16) fabric.TLSPolicy { return fabric.TLSAllowed }
	}})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var queues [2]*host.Queue
	var buf [2][]byte
	for i, v := range []variant{variants[0], {tcp: host.TCP{PSK: tlsPSK(tlsKey)}}} {
		c := h.connect(v, func(o *host.Options) { o.HostID[1] = byte(i) })
		queues[i], buf[i] = h.open(c, 1, 33), h.buffer(c, 32*128<<10)
	}
	for _, size := range []int{4 << 10, 128 << 10} {
		n := 1 << 30 / size
		if size == 4<<10 {
			n /= 4
		}
		var iops, cpu []float64
		for range rounds + 1 {
			var took, used [2]float64
			for i, q := range queues {
				before, start := targetTime(t), time.Now()
				h.must(pipeline(q, n, func(op *host.Op, k int) {
					op.Read(1, uint64(k%256*size/512), uint32(size/512), buf[i][k%32*size:][:size])
				}))
				took[i], used[i] = time.Since(start).Seconds(), targetTime(t)-before
			}
			iops, cpu = append(iops, took[0]/took[1]), append(cpu, used[1]/used[0])
			t.Logf("%d bytes: plain %.0f/s, %.2f us of the target; TLS %.0f/s, %.2f us", size,
				float64(n)/took[0], used[0]*1e6/float64(n), float64(n)/took[1],
				used[1]*1e6/float64(n))
		}
		for what, list := range map[string][]float64{
			"IOPS": iops[1:], "time of the target": cpu[1:],
		} {
			slices.Sort(list)
			t.Logf("%d bytes, %s: %.2f %.2f %.2f", size, what, list[0], list[len(list)/2],
				list[len(list)-1])
		}
	}
}

// targetTime is the processor time of all threads but this one, in seconds.
func targetTime(t *testing.T) float64 {
	t.Helper()
	seconds := func(who int) float64 {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			t.Fatal(err)
		}
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
	}
	return seconds(unix.RUSAGE_SELF) - seconds(unix.RUSAGE_THREAD)
}
