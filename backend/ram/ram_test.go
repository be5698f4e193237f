package ram

import (
	"bytes"
	"errors"
	"math/bits"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

func mustOpen(tb testing.TB, size int64, blockSize int) backend.Device {
	tb.Helper()
	return testutil.Value(Open(Config{Size: size, BlockSize: blockSize}))(tb)
}

func TestConformance(t *testing.T) {
	for _, cfg := range []Config{
		{Size: 64 << 20, BlockSize: 512},
		{Size: 64 << 20, BlockSize: 64 << 10},
		{Size: backendtest.MinSize + 512, BlockSize: 512}, // ends within a page
		{Size: 1 << 40, BlockSize: 4096},
	} {
		backendtest.Run(t,
			func(t *testing.T) backend.Device {
				return audited{mustOpen(t, cfg.Size, cfg.BlockSize).(*device), t}
			}, backendtest.Options{ZeroCopyReads: true, ZeroCopyWrites: true})
	}
}

func TestBadConfig(t *testing.T) {
	for _, cfg := range []Config{
		{},
		{Size: 4096},
		{Size: 4097, BlockSize: 512},
		{Size: 1 << 62, BlockSize: 4096},
	} {
		testutil.True(t, testutil.Err(Open(cfg)) != nil, "%+v: no error", cfg)
	}
}

// used returns the bytes of populated frames.
func used(dev backend.Device) (n int64) {
	f := &dev.(*device).frames
	for g := range f.dirty {
		n += int64(bits.OnesCount64(f.dirty[g].Load())) << f.shift
	}
	return n
}

// TestSparse: memory is populated by frame from the first write until it is discarded; reading
// populates nothing.
func TestSparse(t *testing.T) {
	dev := mustOpen(t, 1<<30+4096, 4096)
	c := backendtest.Use(t, dev, 1<<20)
	b := c.Memory(0, 8192)
	expect := func(what string, frames int64) {
		t.Helper()
		if got := used(dev); got != frames*minFrame {
			t.Errorf("%s: %d bytes are populated, want %d frames", what, got, frames)
		}
	}
	expect("fresh", 0)
	c.MustDo(c.Read(0, b), c.Read(512<<20, b))
	expect("read", 0)
	c.MustDo(c.Write(0, b))
	expect("one write", 1)
	c.MustDo(c.Write(4096, b))
	expect("another write", 1)
	c.MustDo(c.Write(5*minFrame-4096, b))
	expect("a write across frames", 3)
	c.MustDo(c.Write(1<<30, b[:4096]))
	expect("a write to the short frame at the end", 4)
	c.MustDo(&backend.IO{Op: backend.OpWriteZeroes, Off: 0, Len: minFrame - 4096})
	expect("zeroes to a part of a frame", 4)
	c.MustDo(&backend.IO{Op: backend.OpWriteZeroes, Off: 0, Len: minFrame})
	expect("zeroes to a frame", 3)
	c.MustDo(&backend.IO{Op: backend.OpDiscard, Off: minFrame, Len: 4 * minFrame})
	expect("a discard", 2)
	c.MustDo(&backend.IO{Op: backend.OpDiscard, Off: 0, Len: 1<<30 + 4096})
	expect("a discard of everything", 0)
}

// TestLongDiscard: a discard of the whole device is made in steps, and others get their turn in
// between.
func TestLongDiscard(t *testing.T) {
	dev := mustOpen(t, 64<<20, 4096)
	c := backendtest.Use(t, dev, 1<<20)
	b := c.Memory(0, 4096)
	for off := int64(0); off < 64<<20; off += chunk {
		c.MustDo(c.Write(off, b))
		c.MustDo(c.Write(off+stepBytes, b))
	}
	all := used(dev)
	discard := &backend.IO{Op: backend.OpDiscard, Len: 64 << 20}
	c.Submit(discard)
	read := c.Read(63<<20, b)
	c.Submit(read)
	if got := c.Wait(1); len(got) != 1 || got[0] != read {
		t.Errorf("the read had to wait for the discard: %v", got)
	}
	left := used(dev)
	testutil.True(t, left == all-minFrame, "one step of the discard left %d of %d bytes", left, all)
	c.MustDo()
	left = used(dev)
	testutil.True(t, left == 0, "the discard left %d bytes", left)
}

// TestTurn: the channels of a reactor together copy or free what its turn has left.
func TestTurn(t *testing.T) {
	dev, turn := mustOpen(t, 4<<20, 4096), new(backend.Turn)
	done := make([]*backend.IO, 1)
	for _, op := range []backend.Op{backend.OpWrite, backend.OpRead, backend.OpDiscard} {
		var channels []backend.Channel
		var ios []*backend.IO
		for off := int64(0); off < 4<<20; off += 1 << 20 {
			ch := testutil.Value(dev.OpenChannel(backend.Reactor{Wake: func() {}, Turn: turn}))(t)
			io := &backend.IO{
				Op: op, Off: off, Len: 1 << 20, Segs: []mem.Segment{{B: make([]byte, 1<<20)}},
			}
			channels, ios = append(channels, ch), append(ios, io)
			ch.Submit([]*backend.IO{io})
		}
		progress := func() (n uint64) {
			for _, io := range ios {
				n += io.Scratch
			}
			return n
		}
		testutil.True(t, progress() <= 4*stepBytes, "%v: Submit did %d bytes", op, progress())
		for ended, polls := 0, 0; ended < len(channels); polls++ {
			testutil.MustTrue(t, polls <= 4<<20/stepBytes, "%v: %d ended", op, ended)
			before := progress()
			turn.Left = stepBytes
			for _, ch := range channels {
				ended += ch.Poll(done)
			}
			n := progress() - before
			testutil.MustTrue(t, n <= stepBytes, "%v: %d bytes in a turn", op, n)
		}
		for _, ch := range channels {
			testutil.Check(t, ch.Close())
		}
	}
	testutil.Equal(t, used(dev), 0, "bytes in use")
	testutil.Must(t, dev.Close())
}

func benchmark(b *testing.B, blockSize int, op backend.Op, reactors int) {
	dev := mustOpen(b, 256<<20, 4096)
	clients := make([]*backendtest.Client, reactors)
	for i := range clients {
		clients[i] = backendtest.NewClient(b, dev, 32*blockSize)
	}
	for off := int64(0); off < 256<<20; off += int64(32 * blockSize) {
		clients[0].MustDo(clients[0].Write(off, clients[0].Memory(0, 32*blockSize)))
	}
	b.SetBytes(int64(blockSize))
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for r, c := range clients {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(r)))
			ios, done := make([]*backend.IO, 32), make([]*backend.IO, 32)
			for i := range ios {
				ios[i] = c.Write(0, c.Memory(i*blockSize, blockSize))
				ios[i].Op = op
			}
			for n := 0; n < b.N/reactors; n += len(ios) {
				for _, io := range ios {
					io.Off = rnd.Int64N(256<<20/int64(blockSize)) * int64(blockSize)
				}
				c.Channel.Submit(ios)
				c.Channel.Poll(done)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	for _, c := range clients {
		c.Close()
	}
	testutil.Must(b, dev.Close())
}

func BenchmarkRead4K(b *testing.B)     { benchmark(b, 4096, backend.OpRead, 1) }
func BenchmarkWrite4K(b *testing.B)    { benchmark(b, 4096, backend.OpWrite, 1) }
func BenchmarkWrite4KTwo(b *testing.B) { benchmark(b, 4096, backend.OpWrite, 2) }
func BenchmarkWrite128K(b *testing.B)  { benchmark(b, 128<<10, backend.OpWrite, 1) }

// TestProbe: Probe reports each error of Open, and a size beyond the available memory as a warning.
func TestProbe(t *testing.T) {
	real := availableMemory
	defer func() { availableMemory = real }()
	availableMemory = func() (int64, error) { return 1 << 30, nil }
	for _, tc := range []struct {
		cfg              Config
		errors, warnings int
	}{
		{Config{Size: 1 << 30, BlockSize: 4096}, 0, 0},
		{Config{Size: 1<<30 + 4096, BlockSize: 4096}, 0, 1},
		{Config{Size: 4097, BlockSize: 512}, 1, 0},
		{Config{Size: 1 << 62, BlockSize: 4096}, 1, 0},
	} {
		if r := Probe(tc.cfg); len(r.Errors) != tc.errors || len(r.Warnings) != tc.warnings {
			t.Errorf("%+v: %+v", tc.cfg, r)
		}
	}
	availableMemory = func() (int64, error) { return 0, errors.New("unknown") }
	r := Probe(Config{Size: 1 << 40, BlockSize: 4096})
	testutil.True(t, len(r.Errors)+len(r.Warnings) == 0, "%+v", r)
}

// TestBatches: of the IOs of one Submit a later write wins, and a read sees the data written before
// it. This holds for writes that cannot be batched, too: without a frame, with a frame that has a
// reader, across two frames, or with a slot that is already locked.
func TestBatches(t *testing.T) {
	const block, frame, n = 4096, minFrame, 64
	d := mustOpen(t, 8<<20, block).(*device)
	c := backendtest.Use(t, d, 2<<20)
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
}

// TestUnreadReads: zero-copy reads that never end stop no write. Beyond a limit they are refused,
// so each of their frames may be replaced, while zero-copy writes get their full part.
func TestUnreadReads(t *testing.T) {
	const size, n = 64 << 20, 256 << 10
	dev := audited{mustOpen(t, size, 512).(*device), t}
	var clients [3]*backendtest.Client
	for i := range clients {
		clients[i] = backendtest.NewClient(t, dev, 1<<20)
	}
	writer := clients[0]
	for off := int64(0); off < size; off += 1 << 20 {
		fill(writer, off, 1<<20, 1)
	}
	type read struct {
		l    backend.ZeroCopyReader
		segs []mem.Segment
		off  int64
	}
	var reads []read
	off := int64(0)
	for _, c := range clients {
		l := c.Channel.(backend.ZeroCopyReader)
		for ; off < size; off += n {
			segs, ok := l.StartZeroCopyRead(nil, off, n)
			if !ok {
				break
			}
			reads = append(reads, read{l, segs, off})
		}
	}
	if got, limit := int64(len(reads))*n, dev.frames.readLimit()*minFrame; got > limit ||
		got < limit-3*n {
		t.Errorf("%d bytes are being read, the limit is %d", got, limit)
	}
	var writes [][]mem.Segment
	w := clients[1].Channel.(backend.ZeroCopyWriter)
	for {
		segs, ok := w.StartZeroCopyWrite(nil, 0, n)
		if !ok {
			break
		}
		writes = append(writes, segs)
	}
	for off := int64(0); off < size; off += minFrame {
		io := writer.Write(off, writer.Memory(0, 512))
		writer.Submit(io)
		testutil.MustTrue(t, !writer.Channel.Arm(), "a write at %d waits for reads", off)
		writer.Wait(1)
	}
	for _, r := range reads {
		uniform(t, r.segs, 1)
		r.l.EndZeroCopyRead(r.segs, r.off, n)
	}
	for _, segs := range writes {
		w.AbortZeroCopyWrite(segs)
	}
	for _, c := range clients {
		c.Close()
	}
	testutil.Equal(t, dev.readable.Load(), dev.frames.readLimit(), "frames may be read afterwards")
	testutil.Must(t, dev.Close())
}
