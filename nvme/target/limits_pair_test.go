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
