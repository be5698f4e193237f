package ram

import (
	"bytes"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
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
	c := backendtest.Use(t, dev, 1<<20)
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
}

// TestReuse: repeatedly overwriting all of a device needs no additional memory, and the memory
// stays in one piece.
func TestReuse(t *testing.T) {
	const size = 16 << 20
	dev := audited{mustOpen(t, size, 4096).(*device), t}
	c := backendtest.Use(t, dev, 1<<20)
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
}

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
	c := backendtest.Use(t, dev, 1<<20)
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
}

// TestSearchOfOthers: a change that waits for something else does not go on with a search.
func TestSearchOfOthers(t *testing.T) {
	dev := mustOpen(t, 64<<30, 4096).(*device)
	c := backendtest.Use(t, dev, 1<<20)
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
}

// inHugePages returns the size of the anonymous memory of this process in huge pages, in kB
// (proc(5), smaps_rollup).
func inHugePages(t *testing.T) (kb int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		t.Skipf("the kernel does not report huge pages: %v", err)
	}
	_, rest, _ := strings.Cut(string(text), "AnonHugePages:")
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		t.Skipf("no AnonHugePages in smaps_rollup: %v", err)
	}
	return kb
}

// count returns the number of areas that passes have moved, or tried to.
func (h *huge) count() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, tried := range h.tried {
		if tried {
			n++
		}
	}
	return n
}

// TestHugePages: fully written memory, and no other, moves into huge pages, with its data, and
// counts as moved until it is discarded.
func TestHugePages(t *testing.T) {
	const size = 16 << 20
	d := mustOpen(t, size, 4096).(*device)
	asked := 0
	d.frames.filled = func() { asked++ } // passes begin here
	d.huge.pause = 1
	c := backendtest.NewClient(t, d, 2<<20)
	data, got := c.Memory(0, 1<<20), c.Memory(1<<20, 1<<20)
	pattern := func(off int64) {
		for i := range data {
			data[i] = byte(off>>20) + byte(i*7)
		}
	}
	before := inHugePages(t)
	c.MustDo(c.Write(0, data[:8192]))
	d.collapse()
	testutil.MustEqual(t, d.huge.count(), 0, "areas with one frame each were moved")
	for off := int64(0); off < size; off += 1 << 20 {
		pattern(off)
		c.MustDo(c.Write(off, data))
	}
	testutil.True(t, asked != 0, "no pass was asked for")
	d.collapse()
	able := !d.huge.pending.Load() // otherwise the kernel has refused for good
	if n := d.huge.count(); able && n < size>>chunkShift-2 {
		t.Errorf("%d areas of %d were dealt with", n, size>>chunkShift)
	}
	after := inHugePages(t)
	for off := int64(0); off < size; off += 1 << 20 {
		pattern(off)
		c.MustDo(c.Read(off, got))
		testutil.MustTrue(t, bytes.Equal(got, data), "other data at %d", off)
	}
	c.MustDo(&backend.IO{Op: backend.OpDiscard, Len: size})
	d.collapse()
	if n := d.huge.count(); able && n != 0 || used(d) != 0 {
		t.Errorf("after a discard of everything %d areas count as moved, %d bytes are populated", n,
			used(d))
	}
	if c.MustDo(c.Read(0, got)); !bytes.Equal(got, make([]byte, len(got))) {
		t.Error("what was discarded does not read as zeroes")
	}
	c.Close()
	testutil.Must(t, d.Close())
	if !able || after <= before {
		t.Skipf("this kernel has no huge pages for us: %d kB before, %d kB after", before, after)
	}
}

// TestHugePagesOfDevices: memory that a device has registered does not move.
func TestHugePagesOfDevices(t *testing.T) {
	const size = 8 << 20
	d := mustOpen(t, size, 4096).(*device)
	d.frames.filled = func() {} // no pass but ours
	c := backendtest.Use(t, d, 1<<20)
	for off := int64(0); off < size; off += 1 << 20 {
		c.MustDo(c.Write(off, c.Memory(0, 1<<20)))
	}
	testutil.MustTrue(t, d.frames.region.Pin(0), "the region is being unmapped")
	d.collapse()
	if n := d.huge.count(); n > 1 || !d.huge.pending.Load() {
		t.Errorf("%d areas were dealt with, no more passes: %v", n, d.huge.pending.Load())
	}
	d.frames.region.Unpin(0)
}

func TestNever(t *testing.T) {
	name := filepath.Join(t.TempDir(), "enabled")
	testutil.True(t, !disabled(name), "a kernel that has no such setting")
	for text, want := range map[string]bool{
		"always madvise [never]\n": true,
		"always [madvise] never\n": false, "[always] madvise never\n": false,
	} {
		testutil.Must(t, os.WriteFile(name, []byte(text), 0o600))
		testutil.True(t, disabled(name) == want, "%q: %v", text, !want)
	}
}

// TestHugePagesEnd: Close ends a pass at once, even one in a long sleep.
func TestHugePagesEnd(t *testing.T) {
	d := mustOpen(t, 64<<20, 4096).(*device)
	d.huge.pause = 1e9 // years
	c := backendtest.NewClient(t, d, 1<<20)
	for off := int64(0); off < 64<<20; off += 1 << 20 {
		c.MustDo(c.Write(off, c.Memory(0, 1<<20)))
	}
	c.Close()
	ended := make(chan struct{})
	go func() { d.collapse(); close(ended) }()
	for begun := false; !begun; runtime.Gosched() {
		select {
		case <-ended: // this kernel has no huge pages for us
			begun = true
		default:
			if begun = !d.huge.mu.TryLock(); !begun {
				d.huge.mu.Unlock()
			}
		}
	}
	testutil.Check(t, d.Close())
	<-ended
	n := d.huge.count()
	testutil.True(t, n <= 1, "%d areas without a pause", n)
}
