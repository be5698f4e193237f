package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestPairWithoutMemory: a pair that waits for memory, which its host may have used up, keeps no
// write of another host waiting, and no other pair.
func TestPairWithoutMemory(t *testing.T) {
	r, h := joined(t, 3, 2, ramSubsystem(t, 1))
	a, b := h.io[0], h.io[1] // on different reactors
	zero, one, two := fill(0, 512), fill(1, 512), fill(2, 512)
	r.ok(a, rw(nvme.NVMRead, 1, 0, 1, zero))
	pool := r.w.Reactors[1].Memory()
	free := r.exhaust(pool)
	p := pairOf(8, two, one)
	for _, c := range p {
		c.InCapsule = true
	}
	r.must(a.Send(p...))
	r.until("the pair waits", pool.HasWaiters)
	r.ok(b, rw(nvme.NVMWrite, 1, 8, 1, one))
	other := pairOf(8, one, two)
	r.must(b.Send(other...))
	r.until("another pair is carried out", func() bool { return other[1].Done })
	free()
	pool.Serve()
	r.until("the pair goes on", func() bool { return p[1].Done })
	r.allDone(append(p, other...), nvme.Success)
}

// TestDataWaitsForMemory: commands with data of their host get memory for their reads even if data
// of other commands has all memory that the host may have. Otherwise all would wait for each other.
func TestDataWaitsForMemory(t *testing.T) {
	r, h := joined(t, 2, 1, copySubsystem(t))
	q, pool := h.io[0], r.w.Reactors[1].Memory()
	r.ok(q, rw(nvme.NVMWrite, 1, 0, 8, fill(1, 4096)))
	ns := r.target.find(testSub).Namespaces.Load().Get(1)
	flow := &r.raw[1].shares.Hosts[testKey].Flows[ns.Slot].Flow
	for {
		a := new(mem.Allocation)
		if !pool.Alloc(a, flow, 4096) {
			break
		}
		defer a.Free()
	}
	for name, c := range map[string]*fabrictest.Command{
		"compare": rw(nvme.NVMCompare, 1, 0, 8, fill(1, 4096)),
		"copy":    copyTo(16, nvme.CopyRanges, source{1, 0, 8}),
	} {
		c.InCapsule = true
		r.send(q, c)
		r.w.Settle()
		testutil.True(t, c.Done && c.CQE.Status().OK(), "%s: done %v, %v", name, c.Done,
			c.CQE.Status())
	}
}
