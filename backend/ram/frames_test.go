package ram

import (
	"bytes"
	"math/bits"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// audited is a device that checks its counters when it is closed.
type audited struct {
	*device
	t *testing.T
}

func (a audited) Close() error {
	if a.blocked.Len() == 0 {
		a.audit(a.t)
	}
	return a.device.Close()
}

// audit checks, when no channel is open, that each frame in use is in exactly one slot.
func (d *device) audit(t *testing.T) {
	t.Helper()
	f := &d.frames
	testutil.Equal(t, f.spare.Load(), f.maxSpare, "frames are spare")
	testutil.True(t, !d.blocked.Waiting(), "a channel waits")
	owned := map[int64]bool{}
	for c := range d.mapped {
		n := int32(0)
		if int64(c)>>14 > 0 {
			break // the rest of a very large device is not used by tests
		}
		for off := int64(c) << chunkShift; off < min(int64(c+1)<<chunkShift,
			d.info.Size); off += d.frame {
			p := d.slotOf(off).load()
			testutil.True(t, p.readers() == 0 && p&locked == 0, "the slot at %d is left as %#x",
				off, uint64(p))
			if frame := p.frame(); frame >= 0 {
				n++
				testutil.True(t, !owned[frame], "frame %d is in two slots", frame)
				owned[frame] = true
			}
		}
		got := d.mapped[c].Load()
		testutil.True(t, got == n, "chunk %d: %d slots are said to have frames, %d do", c, got, n)
	}
	inUse := 0
	for g := range f.used {
		inUse += bits.OnesCount64(f.used[g].Load())
	}
	for frame := range owned {
		g, bit := f.mask(frame, 1)
		testutil.True(t, f.used[g].Load()&bit != 0, "frame %d is in a slot and free", frame)
		n := f.readers[frame].Load()
		testutil.True(t, n == 0, "frame %d has %d readers beside those of its slot", frame, n)
	}
	if last := d.slotOf(d.info.Size - 1).load().frame(); last >= 0 && !owned[last] {
		owned[last] = true // of a very large device
	}
	testutil.True(t, inUse == len(owned), "%d frames are in use, %d are in slots", inUse,
		len(owned))
}

// fill writes n bytes of v at off.
func fill(c *backendtest.Client, off int64, n int, v byte) {
	b := c.Memory(0, n)
	copy(b, bytes.Repeat([]byte{v}, n))
	c.MustDo(c.Write(off, b))
}

// expect checks that n bytes at off are all v.
func expect(t *testing.T, c *backendtest.Client, off int64, n int, v byte) {
	t.Helper()
	b := c.Memory(0, n)
	c.MustDo(c.Read(off, b))
	testutil.Equal(t, bytes.Count(b, []byte{v}), n, "bytes at %d are not all %d", off, v)
}

// uniform checks that the memory being read is all v.
func uniform(t *testing.T, segs []mem.Segment, v byte) {
	t.Helper()
	for _, s := range segs {
		testutil.Equal(t, bytes.Count(s.B, []byte{v}), len(s.B),
			"bytes that are being read are not all %d", v)
	}
}

// TestReplaceWhileRead: writes of all sizes proceed while their blocks are being read, and readers
// see no change. The frames left to readers are free when the reads have ended.
func TestReplaceWhileRead(t *testing.T) {
	dev := audited{mustOpen(t, 64<<20, 512).(*device), t}
	c, other := backendtest.NewClient(t, dev, 1<<20), backendtest.NewClient(t, dev, 1<<20)
	l, r := c.Channel.(backend.ZeroCopyReader), c.Channel.(backend.ZeroCopyWriter)
	const n = 4 * minFrame
	fill(c, 0, n, 1)
	var reads [][]mem.Segment
	for v := byte(1); v < 5; v++ {
		segs, ok := l.StartZeroCopyRead(nil, 0, n)
		testutil.MustTrue(t, ok, "the zero-copy read is refused")
		reads = append(reads, segs)
		switch v {
		case 1: // frame by frame
			fill(other, 0, n, v+1)
		case 2: // in small pieces
			for off := int64(0); off < n; off += 512 {
				fill(c, off, 512, v+1)
			}
		case 3: // received, the ends within frames
			fill(c, 0, 512, v+1)
			fill(c, n-512, 512, v+1)
			segs, ok := r.StartZeroCopyWrite(nil, 512, n-1024)
			testutil.MustTrue(t, ok, "the zero-copy write is refused")
			for _, s := range segs {
				copy(s.B, bytes.Repeat([]byte{v + 1}, len(s.B)))
			}
			c.MustDo(&backend.IO{
				Op: backend.OpWrite, Flags: backend.ZeroCopy, Off: 512,
				Len: n - 1024, Segs: segs,
			})
		case 4:
			other.MustDo(&backend.IO{Op: backend.OpDiscard, Len: n})
		}
		expect(t, other, 0, n, (v+1)%5)
	}
	for i, segs := range reads {
		uniform(t, segs, byte(i+1))
		l.EndZeroCopyRead(segs, 0, n)
	}
	c.Close()
	other.Close()
	testutil.Must(t, dev.Close())
}

// TestExhausted: when zero-copy reads and writes have all spare frames, zero-copy writes are
// refused and other writes wait for reads, but only for reads of their own blocks. A frame that is
// given back unblocks them.
func TestExhausted(t *testing.T) {
	dev := audited{mustOpen(t, 64<<20, 4096).(*device), t}
	dev.readable.Store(dev.frames.count) // reads may have more than their limit
	c := backendtest.NewClient(t, dev, 1<<20)
	l, r := c.Channel.(backend.ZeroCopyReader), c.Channel.(backend.ZeroCopyWriter)
	var writes [][]mem.Segment
	for {
		segs, ok := r.StartZeroCopyWrite(nil, 0, 1<<20)
		if !ok {
			break
		}
		writes = append(writes, segs)
	}
	if got := int64(len(writes)) << 20; got < minSpare/4 || got > minSpare/2 {
		t.Errorf("zero-copy writes have %d bytes of %d", got, minSpare)
	}
	var reads [][]mem.Segment
	var stuck *backend.IO
	for stuck == nil {
		fill(c, 0, minFrame, byte(len(reads)))
		segs, ok := l.StartZeroCopyRead(nil, 0, minFrame)
		testutil.MustTrue(t, ok && len(reads) <= minSpare/minFrame, "%d reads of one frame: %v",
			len(reads), ok)
		reads = append(reads, segs)
		b := c.Memory(0, minFrame)
		copy(b, bytes.Repeat([]byte{byte(len(reads))}, minFrame))
		io := c.Write(0, b)
		if c.Submit(io); c.Channel.Arm() {
			stuck = io
		} else {
			c.Wait(1)
		}
	}
	// A block in a slot with its own frame, which is not being read.
	fill2 := c.Write(1<<20, c.Memory(512<<10, minFrame))
	c.Submit(fill2)
	testutil.True(t, c.Wait(1)[0] == fill2, "a write that needs no spare frame did not overtake")
	_, ok := r.StartZeroCopyWrite(nil, 4<<20, 1<<20)
	testutil.True(t, !ok, "a zero-copy write started while a write is blocked")
	testutil.True(t, l.WriterWaits(), "no writer waits, although a write is blocked")
	_, ok = l.StartZeroCopyRead(nil, 4<<20, minFrame)
	testutil.True(t, !ok, "a zero-copy read started while a write is blocked")
	l.EndZeroCopyRead(reads[0], 0, minFrame)
	if got := c.Wait(1); got[0] != stuck || stuck.Err != nil {
		t.Errorf("%v: %v", got[0].Op, got[0].Err)
	}
	expect(t, c, 0, minFrame, byte(len(reads)))
	for i, segs := range reads[1:] {
		uniform(t, segs, byte(i+1))
		l.EndZeroCopyRead(segs, 0, minFrame)
	}
	dev.readable.Add(dev.frames.readLimit() - dev.frames.count)
	for _, segs := range writes {
		r.AbortZeroCopyWrite(segs)
	}
	c.Close()
	testutil.Must(t, dev.Close())
}

// TestReuse: repeatedly overwriting all of a device needs no additional memory, and the memory
// stays in one piece.
func TestReuse(t *testing.T) {
	const size = 16 << 20
	dev := audited{mustOpen(t, size, 4096).(*device), t}
	c := backendtest.NewClient(t, dev, 1<<20)
	l, r := c.Channel.(backend.ZeroCopyReader), c.Channel.(backend.ZeroCopyWriter)
	for round := range 4 {
		for off := int64(0); off < size; off += 128 << 10 {
			segs, ok := r.StartZeroCopyWrite(nil, off, 128<<10)
			testutil.MustTrue(t, ok && len(segs) == 1, "round %d, %d: %v, %d segments", round, off,
				ok, len(segs))
			c.MustDo(&backend.IO{
				Op: backend.OpWrite, Flags: backend.ZeroCopy, Off: off,
				Len: 128 << 10, Segs: segs,
			})
			if segs, ok = l.StartZeroCopyRead(nil, off, 128<<10); !ok || len(segs) != 1 {
				t.Fatalf("round %d, %d: %v, read in %d segments", round, off, ok, len(segs))
			}
			l.EndZeroCopyRead(segs, off, 128<<10)
		}
		got := used(dev.device)
		testutil.True(t, got <= size+2<<20, "round %d: %d bytes are populated", round, got)
	}
	c.MustDo(&backend.IO{Op: backend.OpDiscard, Len: size})
	got := used(dev.device)
	testutil.True(t, got <= 2<<20, "%d bytes are left after a discard", got)
	c.Close()
	testutil.Must(t, dev.Close())
}
