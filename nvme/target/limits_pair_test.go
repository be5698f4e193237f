package target

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// TestCopyAtLimit: limits count the bytes that Compare, Verify and Copy read and write.
func TestCopyAtLimit(t *testing.T) {
	const blocks = 2048 // 1 MiB
	for name, tc := range map[string]struct {
		make func() *fabrictest.Command
		want float64 // seconds of each
	}{
		"verify": {func() *fabrictest.Command { return rw(nvme.NVMVerify, 1, 0, blocks, nil) }, 1},
		"compare": {func() *fabrictest.Command {
			return rw(nvme.NVMCompare, 1, 0, 256, make([]byte, 256*512))
		}, 1. / 8},
		"copy": {func() *fabrictest.Command {
			return copyTo(blocks, nvme.CopyRanges, source{1, 0, blocks})
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			sub := copySubsystem(t)
			sub.Namespaces[0].Limits = qos.Limits{Bandwidth: 1 << 20}
			r, h := joined(t, 1, 1, sub)
			var l load
			l.start(r, h.io[0], 4, tc.make)
			r.w.Advance(10 * time.Second)
			before := l.done
			r.w.Advance(100 * time.Second)
			expect(t, "commands in 100 s", l.done-before, 100/tc.want, 0.03)
			testutil.True(t, l.failed <= 0, "%d failed", l.failed)
			l.depth = 0
		})
	}
}

// TestLargeAtLimit: hosts that share a limit with one that verifies or copies much wait for a piece
// of that, not for all. The large command ends when it is aborted or its queue ends.
func TestLargeAtLimit(t *testing.T) {
	for name, large := range map[string]func() *fabrictest.Command{
		"verify": func() *fabrictest.Command { return rw(nvme.NVMVerify, 1, 0, 4096, nil) },
		"copy": func() *fabrictest.Command {
			return copyTo(4096, nvme.CopyRanges, source{1, 0, 4096})
		},
	} {
		t.Run(name, func(t *testing.T) {
			sub := copySubsystem(t)
			sub.Namespaces[0].Limits = qos.Limits{Bandwidth: 128 << 10}
			r, h := joined(t, 1, 2, sub)
			o := r.connectHost(1, func(a *connectArgs) { a.host += "-2" })
			r.ok(o.io[0], rw(nvme.NVMRead, 1, 0, 1, make([]byte, 512)))
			r.w.Advance(time.Minute)
			all := []*fabrictest.Command{large(), large(), large()}
			r.send(h.io[0], all[0])
			r.send(h.io[0], all[1])
			r.send(h.io[1], all[2])
			r.w.Advance(5 * time.Second)
			c := r.send(o.io[0], rw(nvme.NVMRead, 1, 0, 8, make([]byte, 4096)))
			r.w.Advance(8 * time.Second)
			if !c.Done || all[0].Done {
				t.Fatalf("the read of another host: %v, the large command: %v", c.Done, all[0].Done)
			}
			r.ok(h.admin, abortCommand(1, all[0].SQE.CID()))
			r.until("it is aborted", func() bool { return all[0].Done })
			h.io[1].HangUp()
			r.until("the queue ends", func() bool { return h.io[1].Closed() })
			r.w.Advance(2 * time.Minute)
			testutil.True(t, all[1].Done && all[1].CQE.Status().OK(), "the other one: %v, %v",
				all[1].Done, all[1].CQE.Status())
		})
	}
}
