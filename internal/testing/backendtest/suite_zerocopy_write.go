package backendtest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// spread copies b to segments.
func spread(segs []mem.Segment, b []byte) {
	for i := range segs {
		b = b[copy(segs[i].B, b):]
	}
}

// commit returns the IO that commits a zero-copy write with its data in segs.
func commit(segs []mem.Segment, off int64) *backend.IO {
	return &backend.IO{
		Op: backend.OpWrite, Flags: backend.ZeroCopy, Off: off,
		Len: int64(mem.Length(segs)), Segs: segs,
	}
}

// zeroCopyWrite: data is not visible before the write is committed, neighbors are unchanged, and an
// aborted write leaves no trace.
func (s *suite) zeroCopyWrite(t *testing.T, dev backend.Device) {
	c, r := clientOf[backend.ZeroCopyWriter](t, dev, 6<<20)
	defer c.Close()
	info := dev.Info()
	bs := int64(info.BlockSize)
	want, got, b := c.Memory(0, 4<<20), c.Memory(4<<20, 1<<20), c.Memory(5<<20, 1<<20)
	fill(want, 3)
	c.MustDo(c.Write(0, want[:3<<20])) // the rest is free
	clear(want[3<<20:])
	show := func(what string, off, n int64) {
		t.Helper()
		for off, end := max(off-bs, 0), off+n+bs; off < end; off += int64(len(got)) {
			part := got[:min(end-off, int64(len(got)))]
			c.MustDo(c.Read(off, part))
			s.check(t, what, part, want[off:][:len(part)])
		}
	}
	for _, rg := range [][2]int64{
		{0, 1 << 20},
		{1 << 20, 128 << 10},
		{1<<20 + bs, 256 << 10},
		{2<<20 - 128<<10 - bs, 256 << 10},
		{256<<10 - bs, 128<<10 + 2*bs},
		{3<<20 - 128<<10, 256 << 10},
		{3<<20 + 256<<10 + bs, 256 << 10},
	} {
		off, n := rg[0], rg[1]
		for _, abort := range []bool{true, false} {
			keep := []mem.Segment{{B: b[:1]}}
			segs, ok := r.StartZeroCopyWrite(keep, off, n)
			if !ok || &segs[0].B[0] != &b[0] || mem.Length(segs[1:]) != int(n) {
				t.Fatalf("%d bytes at %d: %v, %d bytes in %d segments", n, off, ok,
					mem.Length(segs[1:]), len(segs)-1)
			}
			segs = segs[1:]
			withinChunks(t, segs)
			data := b[:n]
			fill(data, uint64(off+n))
			spread(segs, data)
			show("received and not committed", off, n)
			if abort {
				testutil.True(t, r.Close() != nil,
					"the channel closed with a zero-copy write outstanding")
				r.AbortZeroCopyWrite(segs)
				show("aborted", off, n)
				continue
			}
			io := commit(segs, off)
			c.MustDo(io)
			testutil.True(t, io.Flags&backend.ZeroCopy == 0,
				"a write that has completed has its flag still")
			copy(want[off:], data)
			show("committed", off, n)
		}
	}
	refusedOutside(t, r, info.Size, bs)
}

// refusedOutside checks that zero-copy writes outside the device are refused.
func refusedOutside(t *testing.T, r backend.ZeroCopyWriter, size, bs int64) {
	t.Helper()
	for _, rg := range [][2]int64{
		{size, 1 << 20},
		{size - 512<<10, 1 << 20},
		{-1 << 20, 1 << 20},
		{0, 0},
		{0, -bs},
		{1 << 62, 1 << 20},
	} {
		if segs, ok := r.StartZeroCopyWrite(nil, rg[0], rg[1]); ok || len(segs) > 0 {
			t.Errorf("%d bytes at %d can be written", rg[1], rg[0])
		}
	}
}

// zeroCopyWriteModel compares with a model the writes of several channels, each to its own part,
// with and without a copy. Zero-copy reads have to return the content at the time they started.
func (s *suite) zeroCopyWriteModel(t *testing.T, dev backend.Device) {
	var wg sync.WaitGroup
	var committed atomic.Int64
	for i := range 4 {
		wg.Go(func() { s.writeOwnPart(t, dev, i, &committed) })
	}
	wg.Wait()
	testutil.True(t, committed.Load() != 0, "no zero-copy write")
}

// somewhere returns a random range of whole blocks. Half of the long enough ranges consist of whole
// 64 KiB, and half of all ranges begin at a multiple of 16 KiB.
func somewhere(rnd *rand.Rand, window, bs int) (at, n int) {
	n = (1 + rnd.IntN(max(512<<10/bs, 8))) * bs
	if rnd.IntN(2) == 0 {
		n = max(bs, n&^(64<<10-1))
	}
	at = rnd.IntN((window-n)/bs+1) * bs
	if rnd.IntN(2) == 0 {
		at &^= max(bs, 16<<10) - 1
	}
	return at, n
}

// writeOwnPart is one channel of zeroCopyWriteModel.
func (s *suite) writeOwnPart(t *testing.T, dev backend.Device, i int, committed *atomic.Int64) {
	const window = MinSize / 4
	c, r := clientOf[backend.ZeroCopyWriter](t, dev, window+1<<20)
	defer c.Close()
	l := r.(backend.ZeroCopyReader)
	c.Lock()
	base, bs := int64(i*window), dev.Info().BlockSize
	rnd := rand.New(rand.NewPCG(uint64(i), 3))
	model, b := make([]byte, window), c.Memory(0, window)
	type reading struct {
		segs   []mem.Segment
		off, n int64
		want   []byte
	}
	var reads []reading
	endReads := func() {
		for _, r := range reads {
			s.check(t, "read in place", join(r.segs), r.want)
			l.EndZeroCopyRead(r.segs, r.off, r.n)
		}
		reads = reads[:0]
	}
	for round := range rounds(100) {
		at, n := somewhere(rnd, window, bs)
		off, data := base+int64(at), b[:n]
		fill(data, rnd.Uint64())
		segs, ok := r.StartZeroCopyWrite(nil, off, int64(n))
		switch k := rnd.IntN(8); {
		case ok && k == 0:
			spread(segs, data)
			r.AbortZeroCopyWrite(segs)
		case ok:
			committed.Add(1)
			spread(segs, data)
			c.MustDo(commit(segs, off))
			copy(model[at:], data)
		case k < 6:
			c.MustDo(c.Write(off, data, n/3))
			copy(model[at:], data)
		default:
			c.MustDo(&backend.IO{Op: backend.OpWriteZeroes, Off: off, Len: int64(n)})
			clear(model[at:][:n])
		}
		if segs, ok := l.StartZeroCopyRead(nil, off, int64(n)); ok {
			reads = append(reads, reading{segs, off, int64(n), bytes.Clone(model[at:][:n])})
		}
		if round%8 == 7 {
			endReads()
		}
		if round%32 == 0 {
			c.MustDo(c.Read(base, b))
			s.check(t, fmt.Sprintf("round %d", round), b, model)
		}
	}
	endReads()
}

// zeroCopyWriteTorn makes channels write to the same blocks on every path, abort zero-copy writes,
// and read: every block is uniform.
func (s *suite) zeroCopyWriteTorn(t *testing.T, dev backend.Device) {
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() { writeAndRead(t, dev, i) })
	}
	wg.Wait()
}

// writeAndRead is one channel of zeroCopyWriteTorn.
func writeAndRead(t *testing.T, dev backend.Device, i int) {
	bs := dev.Info().BlockSize
	blocks := max(256<<10/bs, 8)
	n := blocks * bs
	base := int64(2<<20 - n/2) // across a chunk
	c, r := clientOf[backend.ZeroCopyWriter](t, dev, 2*n)
	defer c.Close()
	l := r.(backend.ZeroCopyReader)
	c.Lock()
	rnd := rand.New(rand.NewPCG(uint64(i), 5))
	b := c.Memory(0, n)
	check := func(what string, b []byte) {
		if !uniform(b, bs) {
			t.Errorf("%s: a block is torn", what)
		}
	}
	for range rounds(100) {
		first := rnd.IntN(blocks)
		count := 1 + rnd.IntN(blocks-first)
		off, part := base+int64(first*bs), b[:count*bs]
		size := int64(len(part))
		fillBlocks(part, bs, rnd)
		switch rnd.IntN(6) {
		case 0:
			c.MustDo(c.Read(off, part))
			check("read", part)
		case 1:
			if segs, ok := l.StartZeroCopyRead(nil, off, size); ok {
				runtime.Gosched()
				check("read in place", join(segs))
				l.EndZeroCopyRead(segs, off, size)
			}
		case 2:
			c.MustDo(c.Write(off, part, len(part)/2))
		case 3:
			c.MustDo(&backend.IO{Op: backend.OpWriteZeroes, Off: off, Len: size})
		default:
			// The data is received in part.
			if segs, ok := r.StartZeroCopyWrite(nil, off, size); ok && rnd.IntN(3) == 0 {
				for i := range segs {
					fill(segs[i].B, rnd.Uint64())
				}
				runtime.Gosched()
				r.AbortZeroCopyWrite(segs)
			} else if ok {
				spread(segs, part)
				c.MustDo(commit(segs, off))
			}
		}
	}
}

// zeroCopyWriteNoAlloc: zero-copy writes allocate nothing, committed or aborted.
func (s *suite) zeroCopyWriteNoAlloc(t *testing.T, dev backend.Device) {
	c, r := clientOf[backend.ZeroCopyWriter](t, dev, 4096)
	defer c.Close()
	segs := make([]mem.Segment, 0, 8)
	ios, done := make([]*backend.IO, 1), make([]*backend.IO, 1)
	io := backend.IO{Op: backend.OpWrite}
	ok := true
	if n := testutil.AllocsPerRun(20, func() {
		for off := int64(0); off < 4<<20; off += 1 << 20 {
			if segs, ok = r.StartZeroCopyWrite(segs[:0], off, 1<<20); !ok {
				return
			}
			io.Off, io.Len, io.Flags, io.Segs = off, 1<<20, backend.ZeroCopy, segs
			ios[0] = &io
			if r.Submit(ios); r.Poll(done) != 1 || io.Err != nil {
				t.Fatal("the write is not done", io.Err)
			}
		}
		segs, ok = r.StartZeroCopyWrite(segs[:0], 0, 1<<20)
		r.AbortZeroCopyWrite(segs)
	}); n != 0 || !ok {
		t.Errorf("%v allocations, started: %v", n, ok)
	}
}
