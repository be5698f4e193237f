package e2e

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

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
