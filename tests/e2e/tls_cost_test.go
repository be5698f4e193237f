package e2e

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// costRounds is the number of rounds of TestTLSCost.
const costRounds = 5

// TestTLSCost measures reads with and without TLS in turns, on one reactor, and AES-GCM alone
// beside them: IOPS, and processor time of the target. Plain reads plus AES-GCM are the minimum
// time of reads with TLS. It reports the least, the median and the largest ratio of the rounds, and
// fails if the median is too far from that minimum.
func TestTLSCost(t *testing.T) {
	testutil.Soak(t, "it measures rates and processor time")
	NeedTLS(t)
	h := New(t, Options{TCP: func(c *tcp.Config) {
		RequireTLS(c)
		c.TLS = func(uint16) fabric.TLSPolicy { return fabric.TLSAllowed }
	}})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var queues [2]*host.Queue
	var buf [2][]byte
	for i, v := range []Variant{Variants[0], {TCP: host.TCP{PSK: tlsPSK(TLSKey)}}} {
		c := h.Dial(v, func(o *host.Options) { o.HostID[1] = byte(i) })
		queues[i], buf[i] = h.Open(c, 1, 33), h.Buffer(c, 32*128<<10)
	}
	for _, size := range []int{4 << 10, 128 << 10} {
		n := 1 << 30 / size
		if size == 4<<10 {
			n /= 4
		}
		seal, want := newSealer(t, size), 0.75
		if size == 4<<10 { // the cost of a command differs more from run to run
			want = 0.6
		}
		var iops, cpu, share ratios
		for round := range costRounds + 1 {
			var took, used [2]float64
			for i, q := range queues {
				before, start := targetTime(t), time.Now()
				h.Must(pipeline(q, n, func(op *host.Op, k int) {
					op.Read(1, uint64(k%256*size/512), uint32(size/512), buf[i][k%32*size:][:size])
				}))
				took[i] = time.Since(start).Seconds() * 1e6 / float64(n)
				used[i] = (targetTime(t) - before) * 1e6 / float64(n)
			}
			aead := seal(n)
			t.Logf("%d bytes: plain %.0f/s, %.2f us of the target; TLS %.0f/s, %.2f us; "+
				"AES-GCM alone %.2f us", size, 1e6/took[0], used[0], 1e6/took[1], used[1], aead)
			if round > 0 { // the first one is a warm-up
				iops, cpu = append(iops, took[0]/took[1]), append(cpu, used[1]/used[0])
				share = append(share, (used[0]+aead)/used[1])
			}
		}
		t.Logf("%d bytes, IOPS to plain: %s; target's time to plain: %s; plain and AES-GCM to "+
			"target's time: %s", size, iops.sorted(), cpu.sorted(), share.sorted())
		if median := share[len(share)/2]; median < want {
			t.Errorf("%d bytes: plain and AES-GCM are %.2f of the time with TLS, %.2f is wanted",
				size, median, want)
		}
	}
}

// ratios of rounds.
type ratios []float64

// sorted sorts the ratios and formats the least, the median and the largest.
func (r ratios) sorted() string {
	slices.Sort(r)
	return fmt.Sprintf("%.2f %.2f %.2f", r[0], r[len(r)/2], r[len(r)-1])
}

// newSealer returns a function that seals size bytes n times with AES-GCM, as full records, and
// returns the processor time of one time, in µs.
func newSealer(t *testing.T, size int) func(n int) float64 {
	t.Helper()
	r := testutil.Value(mem.Map("AES-GCM alone", 4096+2*size+1024))(t)
	t.Cleanup(func() { _ = r.Unmap() })
	a := testutil.Value(openssl.NewAEAD(true, make([]byte, 16), make([]byte, 12)))(t)
	t.Cleanup(a.Free)
	v := openssl.Vectors(r.Bytes()[:16])
	sys.SetIovec(&v[0], r.Bytes()[4096:][:size])
	return func(n int) float64 {
		before := processorTime(t, unix.RUSAGE_THREAD)
		for i := range n {
			_, ok := a.Seal(r.Bytes()[4096+size:], uint64(i), v, 0, size, 16<<10, 23)
			testutil.MustTrue(t, ok, "not sealed")
		}
		return (processorTime(t, unix.RUSAGE_THREAD) - before) * 1e6 / float64(n)
	}
}

// targetTime returns the processor time of all threads but this one, in seconds.
func targetTime(t *testing.T) float64 {
	t.Helper()
	return processorTime(t, unix.RUSAGE_SELF) - processorTime(t, unix.RUSAGE_THREAD)
}

func processorTime(t *testing.T, who int) float64 {
	t.Helper()
	var u unix.Rusage
	testutil.Must(t, unix.Getrusage(who, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
