package ram

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestRetrySteps: however many changes wait for a frame, a Poll tries some of them again, and all
// have their turn.
func TestRetrySteps(t *testing.T) {
	for _, n := range []int{10, 100, 1000, 8192} {
		dev := mustOpen(t, 64<<20, 4096).(*device)
		c := backendtest.NewClient(t, dev, 1<<20)
		ch := c.Channel.(*channel)
		fill(c, 0, minFrame, 1)
		segs, ok := ch.StartZeroCopyRead(nil, 0, minFrame)
		testutil.MustTrue(t, ok, "a read is refused")
		spare := dev.frames.spare.Swap(0)
		ios := make([]*backend.IO, n)
		for i := range ios {
			ios[i] = &backend.IO{
				Op: backend.OpWrite, Len: 4096, Segs: []mem.Segment{{B: c.Memory(0, 4096)}},
			}
		}
		ch.Submit(ios)
		testutil.MustTrue(t, ch.Arm(), "no write waits")
		dev.frames.spare.Store(spare)
		dev.blocked.Wake()
		done, polls, got := make([]*backend.IO, 64), 0, 0
		for ; got < n; polls++ {
			more := ch.Poll(done)
			testutil.MustTrue(t, more <= retryMost && polls <= n, "%d writes in a poll of %d", more,
				polls)
			got += more
		}
		testutil.True(t, ch.Arm(), "a change is left")
		ch.EndZeroCopyRead(segs, 0, minFrame)
		c.Close()
		testutil.Must(t, dev.Close())
	}
}

// TestSearchSteps: a search for a frame looks at some groups in a Poll, for any size of the device.
func TestSearchSteps(t *testing.T) {
	for _, size := range []int64{64 << 20, 64 << 30} {
		dev := mustOpen(t, size, 4096).(*device)
		c := backendtest.NewClient(t, dev, 1<<20)
		ch, f := c.Channel.(*channel), &dev.frames
		for g := range f.used {
			f.used[g].Store(f.full())
		}
		io := &backend.IO{
			Op: backend.OpWrite, Len: 4096, Segs: []mem.Segment{{B: c.Memory(0, 4096)}},
		}
		ch.Submit([]*backend.IO{io})
		polls, done := 0, make([]*backend.IO, 1)
		for ; !ch.Arm(); polls++ {
			testutil.MustEqual(t, ch.Poll(done), 0, "completions without a frame")
		}
		groups := int(f.count / f.per)
		testutil.True(t, polls >= groups/(2*maxScan)-1 && polls <= groups/maxScan+1,
			"%d polls for %d groups", polls, groups)
		f.free(f.count-1, 1)
		dev.blocked.Wake()
		for n := 0; n == 0 && polls < 2*groups; polls++ {
			n = ch.Poll(done)
		}
		testutil.True(t, done[0] == io && io.Err == nil, "the write is not carried out: %v", io.Err)
		for g := range f.used { // but the one that the slot has
			f.used[g].Store(0)
		}
		f.claim(f.count - 1)
		c.Close()
		testutil.Must(t, dev.Close())
	}
}
