package backendtest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// model compares random operations with an array, many at a time on ranges that do not overlap.
func (s *suite) model(t *testing.T, dev backend.Device) {
	c := NewClient(t, dev, 8<<20)
	defer c.Close()
	s.random(t, c, dev.Info(), 1<<20, min(1024*dev.Info().BlockSize, 2<<20), rounds(16), 1)
}

// concurrent does the same from several channels at once, each on its own part of the device.
func (s *suite) concurrent(t *testing.T, dev backend.Device) {
	var wg sync.WaitGroup
	for i := range 4 {
		c := NewClient(t, dev, 4<<20)
		wg.Go(func() {
			defer c.Close()
			s.random(t, c, dev.Info(), int64(i)*MinSize/4, min(512*dev.Info().BlockSize, 1<<20),
				rounds(8), uint64(i))
		})
	}
	wg.Wait()
}

// random runs n rounds of random operations on [base, base+window). The client has twice the window
// of memory.
func (s *suite) random(t *testing.T, c *Client, info backend.Info, base int64, window, n int,
	seed uint64,
) {
	bs := info.BlockSize
	rnd := rand.New(rand.NewPCG(seed, 7))
	model := make([]byte, window)
	for range n {
		var ios []*backend.IO
		var checks []func()
		for at := 0; at < window; {
			size := min((1+rnd.IntN(32))*max(bs, 4096), window-at)
			if rnd.IntN(3) > 0 {
				size = min((1+rnd.IntN(8))*bs, size)
			}
			m := model[at:][:size]
			off := base + int64(at)
			switch k := rnd.IntN(10); {
			case k < 4:
				w := c.Memory(at, size)
				fill(w, rnd.Uint64())
				io := c.Write(off, w, size/3&^3, size/2&^3)
				if k == 0 && rnd.IntN(8) == 0 {
					io.Flags = backend.FUA
				}
				ios = append(ios, io)
				copy(m, w)
			case k < 8:
				r := c.Memory(window+at, size)
				want := append([]byte(nil), m...)
				ios = append(ios, c.Read(off, r, size/4&^3))
				checks = append(checks,
					func() { s.check(t, fmt.Sprintf("%d bytes at %d", size, off), r, want) })
			case k == 8:
				ios = append(ios,
					&backend.IO{
						Op:    backend.OpWriteZeroes,
						Flags: backend.Unmap * backend.Flags(rnd.IntN(2)),
						Off:   off, Len: int64(size),
					})
				clear(m)
			case info.DiscardZeroes:
				ios = append(ios, &backend.IO{Op: backend.OpDiscard, Off: off, Len: int64(size)})
				clear(m)
			}
			at += size
		}
		rnd.Shuffle(len(ios), func(i, j int) { ios[i], ios[j] = ios[j], ios[i] })
		if err := c.Do(ios...); err != nil {
			t.Error(err)
			return
		}
		for _, check := range checks {
			check()
		}
	}
}

// torn makes several channels write, zero, discard, flush and read the same blocks, several at a
// time. Every block stays uniform, and everything completes.
func (s *suite) torn(t *testing.T, dev backend.Device) {
	info := dev.Info()
	bs := info.BlockSize
	blocks := min(max(64<<10/bs, 4), 16) // even, so that base is the start of one
	n := blocks * bs
	base := int64(2<<20 - n/2)
	var wg sync.WaitGroup
	for i := range 4 {
		c := NewClient(t, dev, 2*n+2*bs)
		wg.Go(func() {
			defer c.Close()
			rnd := rand.New(rand.NewPCG(uint64(i), 3))
			for round := range rounds(40) {
				w, r := c.Memory(0, n), c.Memory(n, n)
				for b := range blocks {
					copy(w[b*bs:][:bs], bytes.Repeat([]byte{byte(1 + rnd.IntN(255))}, bs))
				}
				ios := []*backend.IO{c.Read(base, r, bs/2, n/2+4)}
				for range 1 + rnd.IntN(6) {
					first := rnd.IntN(blocks)
					part := w[first*bs:][:(1+rnd.IntN(blocks-first))*bs]
					off, size := base+int64(first*bs), int64(len(part))
					switch kind := rnd.IntN(16); {
					case info.DiscardZeroes && kind == 0:
						ios = append(ios, &backend.IO{Op: backend.OpDiscard, Off: 0, Len: 4 << 20})
					case info.DiscardZeroes && kind == 1:
						ios = append(ios, &backend.IO{Op: backend.OpDiscard, Off: off, Len: size})
					case kind == 2:
						ios = append(ios, &backend.IO{Op: backend.OpFlush})
					case kind < 7:
						ios = append(ios, &backend.IO{
							Op: backend.OpWriteZeroes, Off: off, Len: size,
							Flags: backend.Unmap * backend.Flags(kind&1),
						})
					default:
						io := c.Write(off, part, len(part)/2+bs/4)
						io.Flags = backend.FUA * backend.Flags(kind&1)
						ios = append(ios, io)
					}
				}
				rnd.Shuffle(len(ios), func(i, j int) { ios[i], ios[j] = ios[j], ios[i] })
				if err := c.Do(ios...); err != nil {
					t.Error(err)
					return
				}
				for b := range blocks {
					block := r[b*bs:][:bs]
					if same := bytes.Count(block, block[:1]); same != bs {
						t.Errorf("round %d: block %d is torn: %d of %d bytes are %#x", round, b,
							same, bs, block[0])
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// flush mixes flushes and FUA with writes: all of them succeed, and the data is there.
func (s *suite) flush(t *testing.T, dev backend.Device) {
	bs := dev.Info().BlockSize
	const n = 32
	c := NewClient(t, dev, 2*n*bs)
	defer c.Close()
	c.MustDo(&backend.IO{Op: backend.OpFlush})
	for range 5 {
		var ios []*backend.IO
		for i := range n {
			w := c.Memory(i*bs, bs)
			fill(w, uint64(i))
			io := c.Write(int64(i*bs), w)
			if i%8 == 0 {
				io.Flags = backend.FUA
			}
			ios = append(ios, io)
			if i%4 == 0 {
				// Both are ignored.
				ios = append(ios, &backend.IO{Op: backend.OpFlush, Off: -1, Len: -1})
			}
		}
		c.MustDo(ios...)
	}
	r := c.Memory(n*bs, n*bs)
	c.MustDo(c.Read(0, r))
	s.check(t, "after the flushes", r, c.Memory(0, n*bs))
}

// flood submits more IOs than any device takes at once. Each is returned once, with its owner.
func (s *suite) flood(t *testing.T, dev backend.Device) {
	bs := dev.Info().BlockSize
	c := NewClient(t, dev, 8*bs)
	defer c.Close()
	ios := make([]*backend.IO, 5000)
	for i := range ios {
		ios[i] = c.Read(int64(i%100*bs), c.Memory(i%8*bs, bs))
		ios[i].Owner = i
	}
	c.MustDo(ios...)
	for i, io := range ios {
		if io.Owner != i {
			t.Fatalf("IO %d has owner %v", i, io.Owner)
		}
	}
}

// smallPolls polls with room for one IO, and with none.
func (s *suite) smallPolls(t *testing.T, dev backend.Device) {
	bs := dev.Info().BlockSize
	c := NewClient(t, dev, 8*bs)
	defer c.Close()
	for i := range 8 {
		c.Submit(c.Read(int64(i*bs), c.Memory(i*bs, bs)))
	}
	if n := c.Channel.Poll(nil); n != 0 {
		t.Errorf("Poll found %d places in an empty array", n)
	}
	finished := c.Wait(1)
	var one [1]*backend.IO
	for len(finished) < 8 {
		if n := c.Channel.Poll(one[:]); n == 1 {
			finished = append(finished, one[0])
			delete(c.out, one[0])
		} else {
			finished = append(finished, c.Wait(1)...)
		}
	}
}

// closeBusy: a channel with outstanding IOs and a device with an open channel cannot be closed, and
// still work afterwards.
func (s *suite) closeBusy(t *testing.T, dev backend.Device) {
	bs := dev.Info().BlockSize
	c := NewClient(t, dev, 8*bs)
	io := c.Read(0, c.Memory(0, bs))
	c.Lock()
	testutil.MustEqual(t, c.Channel.Submit([]*backend.IO{io}), 1, "Submit took")
	testutil.MustTrue(t, c.Channel.Close() != nil, "the channel closed with an outstanding IO")
	testutil.MustTrue(t, dev.Close() != nil, "the device closed with an open channel")
	c.out[io] = true
	c.Wait(1)
	c.MustDo(c.Read(0, c.Memory(0, bs)))
	c.Close()
}

// noAlloc: neither the submitter nor the device allocates per IO.
func (s *suite) noAlloc(t *testing.T, dev backend.Device) {
	bs := dev.Info().BlockSize
	c := NewClient(t, dev, 64*bs)
	defer c.Close()
	ios := make([]*backend.IO, 16)
	done := make([]*backend.IO, len(ios))
	for i := range ios {
		b := c.Memory(i*bs, bs)
		if ios[i] = c.Read(int64(i*bs), b); i%2 == 0 {
			ios[i] = c.Write(int64(i*bs), b, bs/2)
		}
	}
	c.Lock()
	round := func() {
		if n := c.Channel.Submit(ios); n != len(ios) {
			t.Fatalf("Submit took %d of %d", n, len(ios))
		}
		for left := len(ios); left > 0; {
			n := c.Channel.Poll(done)
			for _, io := range done[:n] {
				testutil.Must(t, io.Err)
			}
			if left -= n; n == 0 {
				runtime.Gosched()
			}
		}
	}
	for range 20 {
		round() // starts workers and maps their buffers
	}
	if n := testutil.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations for %d IOs", n, len(ios))
	}
}
