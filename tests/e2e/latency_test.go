package e2e

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// TestLatencyOfSlowDevice: on both transports, the time that a device takes is that of the stage
// backend, no command takes longer than all of them, and the stages add up.
func TestLatencyOfSlowDevice(t *testing.T) {
	gated(t, func(t *testing.T, h *env, v variant, g *gate) {
		const hold = 20 * time.Millisecond
		c := h.connect(v)
		q := h.Open(c, 1, 17)
		buf := h.Buffer(c, q.Depth()*4096)
		begun := time.Now()
		g.set(true, nil)
		outstanding(t, h, q, buf, g)
		for held := time.Now(); time.Since(held) < hold; {
			_ = q.Wait(time.Millisecond)
		}
		g.set(false, nil)
		done := make([]host.Completion, q.Depth())
		for left := q.Depth(); left > 0; {
			n, err := q.Poll(done)
			h.Must(err)
			if left -= n; n == 0 {
				_ = q.Wait(time.Millisecond)
			}
		}
		counted := func() (n uint64) {
			list, err := h.Target.Latencies(harness.Context(t))
			h.Must(err)
			for _, l := range list {
				n += l.IOs
			}
			return n
		}
		for counted() < uint64(q.Depth()) { // the last ones, when the host has acknowledged them
			if time.Since(begun) > testutil.Patience {
				t.Fatalf("%d of %d commands are counted", counted(), q.Depth())
			}
		}
		took := time.Since(begun)
		list, err := h.Target.Latencies(harness.Context(t))
		h.Must(err)
		for _, l := range list {
			sum := int64(0)
			for i := range l.Stages {
				sum += l.Stages[i].Sum()
			}
			backend := &l.Stages[fabric.StageBackend]
			if l.HostNQN != hostNQN || l.NSID != 1 || sum != l.Total.Sum() ||
				time.Duration(backend.Quantile(0)) < hold*95/100 ||
				time.Duration(l.Total.Max()) > took || 2*backend.Sum() < sum {
				t.Errorf("%s of %v: %d to %d ns in the backend, %d ns in all, at most %d of %v",
					l.Operation, l.HostNQN, backend.Quantile(0), backend.Max(), sum, l.Total.Max(),
					took)
			}
		}
		if len(list) != 2 {
			t.Errorf("%d operations", len(list))
		}
	})
}
