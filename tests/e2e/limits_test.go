package e2e

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// limitsOf has the limits of the namespace and the subsystem of a test.
type limitsOf struct{ namespace, subsystem qos.Limits }

func (h *Env) setLimits(l limitsOf) {
	h.T.Helper()
	testutil.Value(h.Target.UpdateSubsystem(
		subsystems.Config{NQN: SubNQN, AllowAnyHost: true, Limits: l.subsystem}))(h.T)
	h.Must(h.Target.UpdateNamespace(SubNQN, namespaces.Config{NSID: 1, Limits: l.namespace}, nil))
}

// TestDataAtLimit: data written and read at a limit is intact on every path: in capsules, by R2T,
// or from memory of the namespace.
func TestDataAtLimit(t *testing.T) {
	t.Parallel()
	eachVariant(t, nil, func(t *testing.T, h *Env, v Variant) {
		h.setLimits(limitsOf{namespace: qos.Limits{IOPS: 1000, Burst: qos.MinBurst}})
		c := h.Dial(v)
		q := h.Open(c, 1, 17)
		const most, each = 256 << 10, 1 << 20
		out, in := h.Buffer(c, 16*most), h.Buffer(c, 16*most)
		for round, size := range []int{512, 4096, 8192, 64 << 10, most} {
			for _, write := range []bool{true, false} {
				for i := range 16 {
					var op host.Op
					data := out[i*most:][:size]
					slba := uint64(i * each / 512)
					if write {
						pattern(data, uint32(round*16+i))
						op.Write(1, slba, uint32(size/512), data, 0)
					} else {
						op.Read(1, slba, uint32(size/512), in[i*most:][:size])
					}
					testutil.Value(q.Submit(&op))(h.T)
				}
				collectAll(t, q, nvme.Success)
			}
			for i := range 16 {
				testutil.Equal(t, Differ(in[i*most:][:size], out[i*most:][:size]), "",
					"%d bytes, command %d", size, i)
			}
		}
		if l := h.Target.Limits(); len(l) != 1 || l[0].Waits == 0 {
			t.Errorf("nothing has waited: %+v", l)
		}
	})
}

// TestAbortAndDisconnectAtLimit: commands that wait at a limit are aborted, and end with their
// queue. The harness checks for leaked memory.
func TestAbortAndDisconnectAtLimit(t *testing.T) {
	t.Parallel()
	eachVariant(t, nil, func(t *testing.T, h *Env, v Variant) {
		h.setLimits(limitsOf{namespace: qos.Limits{IOPS: 1}})
		c := h.Dial(v)
		q := h.Open(c, 1, 33)
		buf := h.Buffer(c, 32<<10)
		var cids []uint16
		for i := range 32 {
			var op host.Op
			if size := []int{4096, 32 << 10}[i/2%2]; i%2 == 0 {
				op.Read(1, 0, uint32(size/512), buf[:size])
			} else {
				op.Write(1, 0, uint32(size/512), buf[:size], 0)
			}
			cid := testutil.Value(q.Submit(&op))(h.T)
			cids = append(cids, cid)
		}
		h.Until("a command completes", func() bool {
			var done [1]host.Completion
			n := testutil.Value(q.Poll(done[:]))(h.T)
			return n > 0
		})
		aborted := 0
		for _, cid := range cids[16:24] {
			ok := testutil.Value(hosttest.Abort(testutil.Context(t), c, 1, cid))(h.T)
			if !ok {
				continue // its data has not arrived yet
			}
			aborted++
			h.Until("the aborted command completes", func() bool {
				var done [1]host.Completion
				n := testutil.Value(q.Poll(done[:]))(h.T)
				return n > 0 && done[0].CQE.CID() == cid &&
					done[0].Status()&^nvme.More == nvme.AbortRequested
			})
		}
		testutil.True(t, aborted != 0, "nothing was aborted")
	})
}

// TestNoAllocationsAtLimit: I/O below a limit allocates nothing, and waiting commands only allocate
// timers.
func TestNoAllocationsAtLimit(t *testing.T) {
	const commands = 4000
	for _, tc := range []struct {
		name  string
		rate  int64 // IOPS
		count func(runs int, fn func()) float64
		runs  int
		most  float64
	}{
		{"below", 1 << 30, testutil.AllocsPerRun, 1, 0},
		{"waiting", 20_000, testing.AllocsPerRun, 1, commands / 4}, // longer than the burst
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := New(t, Options{})
			h.setLimits(limitsOf{
				namespace: qos.Limits{IOPS: tc.rate},
				subsystem: qos.Limits{Bandwidth: 1 << 50},
			})
			c := h.Dial(Plain[0])
			q := h.Open(c, 1, 33)
			buf, done := h.Buffer(c, 4096), make([]host.Completion, 32)
			var op host.Op
			run := func() {
				for range commands {
					for q.Free() == 0 {
						h.Must(collect(q, done))
					}
					op.Read(1, 0, 8, buf)
					testutil.Value(q.Submit(&op))(t)
				}
				for q.Outstanding() > 0 {
					h.Must(collect(q, done))
				}
			}
			run()
			run()
			got := tc.count(tc.runs, run)
			testutil.True(t, got <= tc.most, "%.0f allocations in %d commands, want at most %.0f",
				got, commands, tc.most)
			t.Logf("%.0f allocations in %d commands", got, commands)
		})
	}
}
