package backendtest

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// clientOf makes a client and returns its channel as a C.
func clientOf[C any](t *testing.T, dev backend.Device, size int) (*Client, C) {
	t.Helper()
	c := NewClient(t, dev, size)
	return c, c.Channel.(C)
}

// isNo checks that the channel lacks an ability that is not in the Options, since that ability
// would not be tested.
func isNo[C any](t *testing.T, dev backend.Device) {
	c := NewClient(t, dev, 4096)
	defer c.Close()
	if _, ok := c.Channel.(C); ok {
		t.Errorf("the device's channel is a %v: say so in the Options", reflect.TypeFor[C]())
	}
}

// join returns the content of segments.
func join(segs []mem.Segment) []byte {
	var b []byte
	for _, s := range segs {
		b = append(b, s.B...)
	}
	return b
}

// withinChunks checks that each segment is within one chunk of its region.
func withinChunks(t *testing.T, segs []mem.Segment) {
	t.Helper()
	for _, seg := range segs {
		region := mem.Find(seg.Region)
		testutil.MustTrue(t, region != nil, "memory of no region")
		off := mem.Addr(seg.B) - mem.Addr(region.Bytes())
		if len(seg.B) == 0 || off/mem.ChunkSize != (off+uint64(len(seg.B))-1)/mem.ChunkSize {
			t.Errorf("a segment of %d bytes at %#x of its region is not within one chunk",
				len(seg.B), off)
		}
	}
}

// uniform reports whether each block of b is filled with one byte.
func uniform(b []byte, bs int) bool {
	for ; len(b) > 0; b = b[bs:] {
		if bytes.Count(b[:bs], b[:1]) != bs {
			return false
		}
	}
	return true
}

// fillBlocks fills each block of b with a random byte.
func fillBlocks(b []byte, bs int, rnd *rand.Rand) {
	for ; len(b) > 0; b = b[bs:] {
		copy(b[:bs], bytes.Repeat([]byte{byte(1 + rnd.IntN(255))}, bs))
	}
}

// zeroCopyRead: reads in place show the written data, and zeroes elsewhere, in segments that keep
// within their chunks.
func (s *suite) zeroCopyRead(t *testing.T, dev backend.Device) {
	c, l := clientOf[backend.ZeroCopyReader](t, dev, 3<<20)
	defer c.Close()
	info := dev.Info()
	bs := int64(info.BlockSize)
	b := c.Memory(0, 3<<20)
	fill(b, 5)
	c.MustDo(c.Write(1<<20, b))
	want := make([]byte, MinSize)
	copy(want[1<<20:], b)
	for _, r := range [][2]int64{
		{0, bs},
		{1 << 20, bs},
		{1<<20 + bs, 3 * bs},
		{0, 4 << 20},
		{3 << 20, 3 << 20},
		{2<<20 - bs, 2 * bs},
		{4 << 20, 4 << 20},
		{0, MinSize},
	} {
		keep := []mem.Segment{{B: b[:1]}}
		segs, ok := l.StartZeroCopyRead(keep, r[0], r[1])
		if !ok || len(segs) < 2 || &segs[0].B[0] != &b[0] {
			t.Fatalf("%d bytes at %d: %v, %d segments", r[1], r[0], ok, len(segs))
		}
		s.check(t, "read in place", join(segs[1:]), want[r[0]:][:r[1]])
		withinChunks(t, segs[1:])
		l.EndZeroCopyRead(segs[1:], r[0], r[1])
	}
	for _, r := range [][2]int64{
		{info.Size, bs},
		{info.Size - bs, 2 * bs},
		{-bs, bs},
		{0, 0},
		{0, -bs},
		{1 << 62, bs},
	} {
		if segs, ok := l.StartZeroCopyRead(nil, r[0], r[1]); ok || len(segs) > 0 {
			t.Errorf("%d bytes at %d can be read", r[1], r[0])
		}
	}
	if segs, ok := l.StartZeroCopyRead(nil, 0, bs); ok {
		testutil.True(t, l.Close() != nil, "the channel closed with a zero-copy read outstanding")
		l.EndZeroCopyRead(segs, 0, bs)
	}
}

// stable: memory that is being read does not change, whether writers wait or not. Waiting writers
// delay no reads, and everything is written once the last zero-copy read has ended.
func (s *suite) stable(t *testing.T, dev backend.Device) {
	c, l := clientOf[backend.ZeroCopyReader](t, dev, 4<<20)
	defer c.Close()
	bs := int64(dev.Info().BlockSize)
	n := max(4*bs, 64<<10)
	old, fresh := c.Memory(0, int(n)), c.Memory(int(n), int(n))
	fill(old, 1)
	fill(fresh, 2)
	ready := make(chan int)
	tell := make(chan int)
	go blockedWriter(t, dev, n, tell, ready) // a second reactor
	zero := make([]byte, n)
	for round, after := range [][]byte{fresh, fresh, zero, zero, zero, zero} {
		c.MustDo(c.Write(0, old), c.Write(4<<20, old))
		first, ok1 := l.StartZeroCopyRead(nil, n-2*bs, bs)
		second, ok2 := l.StartZeroCopyRead(nil, n-2*bs, 2*bs)
		if !ok1 || !ok2 {
			t.Fatalf("round %d: refused: %v, %v", round, ok1, ok2)
		}
		tell <- 1
		<-ready
		s.check(t, "while it is read", append(join(first), join(second)...),
			append(append([]byte(nil), old[n-2*bs:n-bs]...), old[n-2*bs:]...))
		l.EndZeroCopyRead(first, n-2*bs, bs)
		runtime.Gosched()
		s.check(t, "still being read", join(second), old[n-2*bs:])
		l.EndZeroCopyRead(second, n-2*bs, 2*bs)
		<-ready
		got := c.Memory(2<<20, int(n))
		c.MustDo(c.Read(0, got))
		s.check(t, "after the reads", got, after)
	}
	<-ready
}

// blockedWriter changes n bytes by each kind of operation, one after each receive from tell. ready
// gets 1 when the changes are submitted and a read has overtaken them, 2 when they are done.
func blockedWriter(t *testing.T, dev backend.Device, n int64, tell <-chan int, ready chan<- int) {
	w := NewClient(t, dev, 2<<20)
	defer close(ready)
	defer w.Close()
	bs := int64(dev.Info().BlockSize)
	b := w.Memory(0, int(n))
	fill(b, 2)
	for _, ios := range [][]*backend.IO{
		{w.Write(0, b)},
		{w.Write(n-2*bs, b[n-2*bs:]), w.Write(0, b[:n-2*bs])},
		{{Op: backend.OpWriteZeroes, Len: n}},
		{
			{Op: backend.OpWriteZeroes, Off: n - 2*bs, Len: 2 * bs},
			{Op: backend.OpWriteZeroes, Len: n - 2*bs},
		},
		{{Op: backend.OpDiscard, Len: 2 << 20}},
		{{Op: backend.OpDiscard, Len: 8 << 20}},
	} {
		<-tell
		finished := w.Submit(ios...)
		read := w.Read(0, w.Memory(1<<20, int(bs)))
		for finished = append(finished, w.Submit(read)...); !slices.Contains(finished, read); {
			finished = append(finished, w.Wait(1)...) // the read overtakes
		}
		ready <- 1
		w.Wait(len(w.out))
		for _, io := range ios {
			testutil.Check(t, io.Err)
		}
		ready <- 2
	}
}

// zeroCopyReadTorn makes channels write, zero and discard blocks that others read in place. A block
// that is being read is uniform and does not change.
func (s *suite) zeroCopyReadTorn(t *testing.T, dev backend.Device) {
	var wg sync.WaitGroup
	var started, refused atomic.Int64
	for i := range 4 {
		wg.Go(func() { readAndWrite(t, dev, i, &started, &refused) })
	}
	wg.Wait()
	if started.Load() == 0 {
		t.Errorf("no zero-copy read, %d times refused", refused.Load())
	}
	t.Logf("%d zero-copy reads, %d refused", started.Load(), refused.Load())
}

// readAndWrite is one channel of zeroCopyReadTorn.
func readAndWrite(t *testing.T, dev backend.Device, i int, started, refused *atomic.Int64) {
	info := dev.Info()
	bs := info.BlockSize
	blocks := min(max(64<<10/bs, 4), 16)
	n := blocks * bs
	base := int64(2<<20 - n/2) // across a chunk
	c, l := clientOf[backend.ZeroCopyReader](t, dev, 2*n)
	defer c.Close()
	c.Lock()
	rnd := rand.New(rand.NewPCG(uint64(i), 9))
	segs := make([]mem.Segment, 0, 4)
	for round := range rounds(300) {
		first := rnd.IntN(blocks)
		count := 1 + rnd.IntN(blocks-first)
		off, part := base+int64(first*bs), c.Memory(0, count*bs)
		if round%3 > 0 {
			var ok bool
			if segs, ok = l.StartZeroCopyRead(segs[:0], off, int64(len(part))); !ok {
				refused.Add(1)
				continue
			}
			started.Add(1)
			was := join(segs)
			if !uniform(was[:len(part)], bs) {
				t.Errorf("round %d: a block that is being read is torn", round)
			}
			runtime.Gosched()
			if !bytes.Equal(join(segs), was) {
				t.Errorf("round %d: a block changed while it was being read", round)
			}
			l.EndZeroCopyRead(segs, off, int64(len(part)))
			continue
		}
		fillBlocks(part, bs, rnd)
		io := c.Write(off, part, len(part)/2)
		switch {
		case info.DiscardZeroes && round%17 == 0:
			io = &backend.IO{Op: backend.OpDiscard, Off: 0, Len: 4 << 20}
		case round%5 == 0:
			io = &backend.IO{Op: backend.OpWriteZeroes, Off: off, Len: int64(len(part))}
		}
		if err := c.Do(io); err != nil {
			t.Error(err)
			return
		}
	}
}

// zeroCopyReadStarve: two readers of a block, with zero-copy reads that always overlap, do not keep
// a writer out.
func (s *suite) zeroCopyReadStarve(t *testing.T, dev backend.Device) {
	c := NewClient(t, dev, 1<<20)
	defer c.Close()
	bs := dev.Info().BlockSize
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			r, l := clientOf[backend.ZeroCopyReader](t, dev, 4096)
			defer r.Close()
			var have [][]mem.Segment
			for ; !stop.Load() || len(have) > 0; runtime.Gosched() {
				got := false
				if !stop.Load() {
					var segs []mem.Segment
					if segs, got = l.StartZeroCopyRead(nil, 0, int64(bs)); got {
						have = append(have, segs)
					}
				}
				// There is a newer read, or no other one was granted.
				if len(have) > 1 || len(have) == 1 && !got {
					l.EndZeroCopyRead(have[0], 0, int64(bs))
					have = have[1:]
				}
			}
		})
	}
	for range 200 {
		c.MustDo(c.Write(0, c.Memory(0, bs)))
	}
	stop.Store(true)
	wg.Wait()
}

func (s *suite) zeroCopyReadNoAlloc(t *testing.T, dev backend.Device) {
	c, l := clientOf[backend.ZeroCopyReader](t, dev, 1<<20)
	defer c.Close()
	c.MustDo(c.Write(0, c.Memory(0, 1<<20)))
	segs := make([]mem.Segment, 0, 8)
	if n := testutil.AllocsPerRun(100, func() {
		for off := int64(0); off < 4<<20; off += 1 << 20 {
			var ok bool
			if segs, ok = l.StartZeroCopyRead(segs[:0], off, 1<<20); ok {
				l.EndZeroCopyRead(segs, off, 1<<20)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
