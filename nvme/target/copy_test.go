package target

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// source is a source range of a Copy: nsid is 0 in format 0.
type source struct {
	nsid   uint32
	slba   uint64
	blocks uint32
}

// copyTo makes a Copy command to namespace 1.
func copyTo(sdlba uint64, format nvme.CopyFormat, from ...source) *fabrictest.Command {
	c := command(nvme.NVMCopy, 1, make([]byte, len(from)*nvme.CopyRangeSize))
	c.SQE.Copy().Set(sdlba, len(from), format, 0)
	for i, s := range from {
		(*nvme.CopyRange)(c.Data[i*nvme.CopyRangeSize:]).Set(s.nsid, s.slba, s.blocks)
	}
	return c
}

// enableCopy sets the CDFE bits of the host.
func (r *harness) enableCopy(h *host) {
	c := setFeature(nvme.FeatureHostBehavior, 0)
	c.Data = make([]byte, nvme.HostBehaviorSize)
	c.Data[nvme.HostBehaviorCDFE] = byte(nvme.CopyNamespaces.Bit())
	r.ok(h.admin, c)
}

// copySubsystem has namespaces 1 and 2 of 4 MiB with blocks of 512 bytes, 3 with blocks of 4096,
// and 4 that is write protected.
func copySubsystem(t *testing.T) subsystems.Config {
	sub := subsystems.Config{NQN: testSub, AllowAnyHost: true}
	for i, bs := range []int{512, 512, 4096, 512} {
		sub.Namespaces = append(sub.Namespaces, namespaces.Config{
			NSID: uint32(i + 1), Device: ramDevice(t, 4<<20, bs), ReadOnly: i == 3,
		})
	}
	return sub
}

// TestMoveMemory: commands that find no memory wait for it, end when they are aborted, and go on
// when there is some.
func TestMoveMemory(t *testing.T) {
	r, h := joined(t, 2, 1, ramSubsystem(t, 1))
	q, pool := h.io[0], r.w.Reactors[1].Memory()
	r.ok(q, rw(nvme.NVMVerify, 1, 0, 1, nil))
	free := r.exhaust(pool)
	first, second := rw(nvme.NVMVerify, 1, 0, 2048, nil), rw(nvme.NVMVerify, 1, 0, 2048, nil)
	r.send(q, first)
	r.send(q, second)
	r.w.Settle()
	testutil.MustTrue(t, !first.Done && pool.HasWaiters(), "without memory: done %v", first.Done)
	r.ok(h.admin, abortCommand(1, first.SQE.CID()))
	testutil.Equal(t, first.CQE.Status().Code(), nvme.AbortRequested, "aborted")
	free()
	pool.Serve()
	r.until("the other goes on", func() bool { return second.Done })
	testutil.Equal(t, second.CQE.Status(), nvme.Success, "")
	free = r.exhaust(pool)
	second.Reset()
	r.send(q, second)
	r.w.Settle()
	for next := pool.Expire(1 << 62); next() > 0; {
	}
	r.until("the wait is over", func() bool { return second.Done })
	testutil.Equal(t, second.CQE.Status().Code(), nvme.CommandInterrupted, "after the wait")
	free()
}

// exhaust takes all memory of a pool until free.
func (r *harness) exhaust(pool *mem.Pool) (free func()) {
	var a mem.Allocation
	testutil.MustTrue(r.t, pool.Alloc(&a, nil, pool.Available()), "the memory is not free")
	return a.Free
}
