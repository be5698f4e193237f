package target

import (
	"bytes"
	"errors"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
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
func copySubsystem(t *testing.T) SubsystemConfig {
	sub := SubsystemConfig{NQN: testSub, AllowAnyHost: true}
	for i, bs := range []int{512, 512, 4096, 512} {
		sub.Namespaces = append(sub.Namespaces, namespaces.Config{
			NSID: uint32(i + 1), Device: ramDevice(t, 4<<20, bs), ReadOnly: i == 3,
		})
	}
	return sub
}

// TestCopyFails: the source ranges before the one in DW0 were copied if a read or a write fails,
// the command is aborted, or a namespace is removed.
func TestCopyFails(t *testing.T) {
	sub, dev := hangingSubsystem(t)
	sub.Namespaces[0].Timeout = 0
	r, h := joined(t, 2, 1, sub)
	r.enableCopy(h)
	q := h.io[0]
	from := []source{{1, 1000, 1}, {2, 8, 1}, {1, 1010, 1}, {2, 10, 1}}
	marker := fill(9, 512)
	for _, s := range from {
		r.ok(q, rw(nvme.NVMWrite, s.nsid, s.slba, s.blocks, marker))
	}
	boom := errors.New("boom")
	for _, tc := range []struct {
		op   backend.Op
		off  int64
		want nvme.Status
		dw0  uint32
	}{
		{backend.OpRead, 1010 * 512, nvme.UnrecoveredReadError, 2},
		{backend.OpWrite, 111 * 512, nvme.WriteFault, 1},
		{backend.OpWrite, 110 * 512, nvme.WriteFault, 0},
	} {
		dev.Fail(func(io *backend.IO) error {
			if io.Op == tc.op && io.Off == tc.off {
				return errors.Join(boom, backend.ErrIO)
			}
			return nil
		})
		r.ok(q, rw(nvme.NVMWriteZeroes, 1, 110, 4, nil))
		c := r.status(q, copyTo(110, nvme.CopyNamespaces, from...), tc.want)
		testutil.True(t, c.CQE.DW0() <= tc.dw0, "%v at %d: DW0 is %d, range %d failed", tc.op,
			tc.off, c.CQE.DW0(), tc.dw0)
		for i := range c.CQE.DW0() {
			b := r.ok(q, rw(nvme.NVMRead, 1, 110+uint64(i), 1, make([]byte, 512)))
			if !bytes.Equal(b.Data, marker) {
				t.Errorf("%v at %d: DW0 is %d, range %d was not copied", tc.op, tc.off,
					c.CQE.DW0(), i)
			}
		}
	}
	dev.Fail(nil)

	dev.Hold(func(io *backend.IO) bool { return io.Off == 1010*512 })
	c := r.send(q, copyTo(100, nvme.CopyNamespaces, from...))
	r.until("the device has a read", func() bool { return dev.Held() == 1 })
	r.w.Settle() // it has written the ranges before
	r.ok(h.admin, abortCommand(1, c.SQE.CID()))
	dev.Release()
	r.until("the copy ends", func() bool { return c.Done })
	if st := c.CQE.Status().Code(); st != nvme.AbortRequested || c.CQE.DW0() != 2 {
		t.Errorf("aborted: %v, DW0 %d", st, c.CQE.DW0())
	}

	var long []source // more than the reads that are begun at once
	for range 8 {
		long = append(long, source{1, 1000, 1}, source{2, 8, 1})
	}
	dev.Hold(func(io *backend.IO) bool { return io.Op == backend.OpRead })
	c = r.send(q, copyTo(100, nvme.CopyNamespaces, long...))
	r.until("the device has reads", func() bool { return dev.Held() > 0 })
	_, err := r.target.RemoveNamespace(testSub, 2)
	r.must(err)
	r.w.Settle()
	dev.Release()
	r.until("the copy ends", func() bool { return c.Done })
	testutil.True(t, c.CQE.Status().Code() != nvme.Success,
		"a copy from a namespace that was removed succeeds")
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
