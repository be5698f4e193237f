package ram

import (
	"bytes"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestBatches: of the IOs of one Submit a later write wins, and a read sees the data written before
// it. This holds for writes that cannot be batched, too: without a frame, with a frame that has a
// reader, across two frames, or with a slot that is already locked.
func TestBatches(t *testing.T) {
	const block, frame, n = 4096, minFrame, 64
	d := mustOpen(t, 8<<20, block).(*device)
	c := backendtest.NewClient(t, d, 2<<20)
	c.MustDo(c.Write(0, c.Memory(0, 1<<20)))
	ch := c.Channel.(*channel)
	reading, ok := ch.StartZeroCopyRead(nil, 4*frame, frame)
	testutil.MustTrue(t, ok, "the zero-copy read is refused")
	was := bytes.Clone(reading[0].B)
	want := make([]byte, 2<<20)
	var ios []*backend.IO
	for i := range n {
		// Frames 0 to 9, each several times; then two at once, and frames that were never written.
		off := int64(i) % 10 * frame
		size := block * (1 + i%4)
		switch {
		case i%7 == 6:
			off += frame - block
			size = 2 * block
		case i%11 == 10:
			off += 1 << 20
		}
		b := c.Memory(i*frame, size)
		for k := range b {
			b[k] = byte(i + 1)
		}
		copy(want[off:], b)
		ios = append(ios, c.Write(off, b))
	}
	seen := c.Memory(n*frame, block)
	ios = append(ios, c.Read(0, seen), c.Write(0, c.Memory(n*frame+block, block)))
	before := want[0]
	clear(want[:block])
	k := c.Channel.Submit(ios)
	testutil.MustTrue(t, k == len(ios), "%d of %d were taken", k, len(ios))
	done := make([]*backend.IO, len(ios))
	k = c.Channel.Poll(done)
	testutil.MustTrue(t, k == len(ios), "%d of %d are done", k, len(ios))
	for _, io := range done {
		testutil.True(t, io.Err == nil, "%v", io.Err)
	}
	testutil.True(t, seen[0] == before, "a read sees %d, %d was written before it", seen[0], before)
	testutil.True(t, bytes.Equal(reading[0].B, was), "a frame was changed while it was being read")
	ch.EndZeroCopyRead(reading, 4*frame, frame)
	for off := int64(0); off < int64(len(want)); off += frame {
		got := c.Memory(0, frame)
		c.MustDo(c.Read(off, got))
		if off < 10*frame || off >= 1<<20 && off < 1<<20+11*frame {
			testutil.True(t, bytes.Equal(got, want[off:off+frame]),
				"frame %d is not what was written last", off/frame)
		}
	}
	c.Close()
	testutil.Must(t, d.Close())
}
