package ram

import (
	"sync"
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

// TestLastOfGroup: channels that search at the same time find all free frames of a group.
func TestLastOfGroup(t *testing.T) {
	dev := mustOpen(t, 64<<20, 4096).(*device)
	f := &dev.frames
	for g := range f.used {
		f.used[g].Store(f.full())
	}
	f.free(0, 2) // one for each
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			c := &channel{d: dev}
			for range 200_000 {
				frame, ok := c.last(false)
				if !ok {
					t.Error("a channel finds none")
					return
				}
				f.free(frame, 1)
			}
		})
	}
	wg.Wait()
	for g := range f.used {
		f.used[g].Store(0)
	}
	testutil.Must(t, dev.Close())
}

// TestTrimWakes: frames that a full cache gives back wake the channels that wait for one.
func TestTrimWakes(t *testing.T) {
	dev := mustOpen(t, 64<<20, 4096).(*device)
	c, other := backendtest.NewClient(t, dev, 1<<20), backendtest.NewClient(t, dev, 1<<20)
	ch, waits := c.Channel.(*channel), other.Channel.(*channel)
	n := ch.cache.maxFrames + 1
	for i := range n {
		testutil.MustTrue(t, dev.frames.claim(i), "frame %d is not free", i)
	}
	dev.frames.spare.Add(-n)
	ch.cache.put(0, n)
	waits.retry.Wait(true)
	ch.trimCache()
	testutil.True(t, waits.retry.Take() && ch.cache.total == 0, "it is not woken, %d frames stay",
		ch.cache.total)
	waits.retry.Wait(false)
	c.Close()
	other.Close()
	testutil.Must(t, dev.Close())
}

// TestSearchEnds: a search that has found no frame is over for all changes that wait, so that the
// reactor can sleep. It has looked at all groups since the channel waits.
func TestSearchEnds(t *testing.T) {
	const writes = 3
	dev := mustOpen(t, 64<<30, 4096).(*device)
	c := backendtest.NewClient(t, dev, 1<<20)
	ch, f := c.Channel.(*channel), &dev.frames
	for g := range f.used {
		f.used[g].Store(f.full())
	}
	ios := make([]*backend.IO, writes)
	for i := range ios {
		ios[i] = &backend.IO{
			Op: backend.OpWrite, Len: 4096, Segs: []mem.Segment{{B: c.Memory(0, 4096)}},
		}
	}
	for range 2 {
		testutil.MustTrue(t, ch.step(ios[0]) == blocked, "a write finds a frame")
	}
	behind := 700 * f.per // the search, which is of a channel that does not wait yet
	f.free(behind, 1)
	done := make([]*backend.IO, writes)
	finish := func(writes int) {
		most := 2 * len(f.used) / maxScan
		got, polls := 0, 0
		for ; got < writes && polls < most; polls++ {
			got += ch.Poll(done)
		}
		testutil.MustEqual(t, got, writes, "writes after %d polls", polls)
	}
	ch.Submit(ios[:1])
	finish(1)

	for _, io := range ios {
		io.Off = 1 << 30
	}
	ch.Submit(ios)
	for polls := 0; !ch.Arm(); polls++ {
		testutil.MustTrue(t, polls < 2*len(f.used)/maxScan, "the search goes on and on")
		testutil.MustEqual(t, ch.Poll(done), 0, "completions without a frame")
	}
	f.free(f.count-1, 1)
	dev.blocked.Wake()
	finish(writes)
	testutil.True(t, ch.Arm(), "something is left")
	for g := range f.used { // but those of the slots
		f.used[g].Store(0)
	}
	f.claim(behind)
	f.claim(f.count - 1)
	c.Close()
	testutil.Must(t, dev.Close())
}

// TestSearchOfOthers: a change that waits for something else does not go on with a search.
func TestSearchOfOthers(t *testing.T) {
	dev := mustOpen(t, 64<<30, 4096).(*device)
	c := backendtest.NewClient(t, dev, 1<<20)
	ch := c.Channel.(*channel)
	fill(c, 0, minFrame, 1)
	segs, ok := ch.StartZeroCopyRead(nil, 0, minFrame)
	testutil.MustTrue(t, ok, "a read is refused")
	spare := dev.frames.spare.Swap(0)
	io := &backend.IO{Op: backend.OpWrite, Len: 4096, Segs: []mem.Segment{{B: c.Memory(0, 4096)}}}
	ch.Submit([]*backend.IO{io})
	ch.searched = maxScan // by a change that has got a frame
	done := make([]*backend.IO, 1)
	for polls := 0; !ch.Arm(); polls++ {
		testutil.MustTrue(t, polls < 2 && ch.Poll(done) == 0, "%d polls", polls)
	}
	dev.frames.spare.Store(spare)
	dev.blocked.Wake()
	testutil.Equal(t, ch.Poll(done), 1, "writes")
	ch.EndZeroCopyRead(segs, 0, minFrame)
	c.Close()
	testutil.Must(t, dev.Close())
}
