package disk

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
)

func TestSpan(t *testing.T) {
	var f fence
	f.init(512)
	const g = minGranule
	for _, tc := range []struct {
		off, n int64
		want   span
	}{
		{0, 0, span{}},
		{0, 1, span{a: 0, b: 1}},
		{g - 1, 1, span{a: 0, b: 1}},
		{g - 1, 2, span{a: 0, b: 2}},
		{g, 512, span{a: 1, b: 2}},
		{5 * g, 3 * g, span{a: 5, b: 8}},
		{(nRanges - 1) * g, g, span{a: nRanges - 1, b: nRanges}},
		{(nRanges - 1) * g, 2 * g, span{a: 0, b: 1, c: nRanges - 1, d: nRanges}},
		{7 * nRanges * g, g, span{a: 0, b: 1}},
		{3 * g, (nRanges - 1) * g, span{a: 0, b: 2, c: 3, d: nRanges}},
		{3 * g, nRanges * g, span{b: nRanges}},
		{512, 1 << 40, span{b: nRanges}},
	} {
		if got := f.span(tc.off, tc.n); got != tc.want {
			t.Errorf("span(%d, %d) = %v, want %v", tc.off, tc.n, got, tc.want)
		}
	}
	f.init(64 << 10)
	if got := f.span(64<<10, 64<<10); got != (span{a: 1, b: 2}) {
		t.Errorf("with blocks of 64 KiB: %v", got)
	}
}

func TestSpanWords(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		s := span{b: rnd.IntN(nRanges + 1), d: nRanges}
		s.a = rnd.IntN(s.b + 1)
		s.c = s.b + rnd.IntN(nRanges-s.b+1)
		var got [nRanges]bool
		s.words(func(i int, mask uint64) {
			for bit := range 64 {
				if mask>>bit&1 != 0 {
					got[i*64+bit] = true
				}
			}
		})
		for i := range got {
			if want := i >= s.a && i < s.b || i >= s.c && i < s.d; got[i] != want {
				t.Fatalf("%+v: place %d is %v", s, i, got[i])
			}
		}
	}
}

// actor takes and releases spans as a channel does.
type actor struct {
	c    channel
	bell chan struct{}
}

func newActor() *actor {
	a := &actor{bell: make(chan struct{}, 1)}
	a.c.wake = func() {
		select {
		case a.bell <- struct{}{}:
		default:
		}
	}
	return a
}

// admitted waits until the fence lets an op of this actor pass.
func (a *actor) admitted(t *testing.T) bool {
	for a.c.inbox.take() == nil {
		select {
		case <-a.bell:
		case <-time.After(time.Minute):
			t.Error("not admitted")
			return false
		}
	}
	return true
}

func (a *actor) op(kind backend.Op, off, n int64) *op {
	return &op{c: &a.c, io: &backend.IO{Op: kind, Off: off, Len: n}, write: kind != backend.OpRead}
}

// TestFenceExcludes: writers exclude everyone from what they overlap, readers share, and nobody
// waits for ever.
func TestFenceExcludes(t *testing.T) {
	var f fence
	f.init(4096)
	const places = 16
	var users [places]atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			a := newActor()
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			for range 20000 {
				kind, one := backend.OpRead, int32(1)
				if rnd.IntN(2) == 0 {
					kind, one = backend.OpWrite, -1000
				}
				from := rnd.IntN(places)
				n := 1 + rnd.IntN(places-from)
				off := int64(from) * 4096
				if rnd.IntN(100) == 0 {
					off += nRanges * 4096 // shares the places
				}
				o := a.op(kind, off, int64(n)*4096)
				if !f.acquire(o) && !a.admitted(t) {
					return
				}
				for p := from; p < from+n; p++ {
					if got := users[p].Add(one); got < 0 != (one < 0) || one < 0 && got != one {
						t.Errorf("place %d is used by %d", p, got)
					}
				}
				for p := from; p < from+n; p++ {
					users[p].Add(-one)
				}
				f.release(o)
			}
		})
	}
	wg.Wait()
	if f.waiting.Load() != 0 || f.queue.head != nil {
		t.Errorf("%d are still waiting", f.waiting.Load())
	}
	for i := range f.table {
		if n := f.table[i].Load(); n != 0 {
			t.Fatalf("place %d: %d", i, n)
		}
	}
}

// TestFenceIsFair: a writer that waits for readers is not overtaken by readers that come later, but
// by those who have nothing to do with it.
func TestFenceIsFair(t *testing.T) {
	var f fence
	f.init(4096)
	a := newActor()
	r1, w, r2, elsewhere := a.op(backend.OpRead, 0, 8192), a.op(backend.OpWrite, 4096, 4096),
		a.op(backend.OpRead, 4096, 8192), a.op(backend.OpRead, 0, 4096)
	if !f.acquire(r1) || f.acquire(w) || f.acquire(r2) {
		t.Fatal("a reader passes a writer that waits, or a writer a reader")
	}
	if a.c.inbox.take() != nil {
		t.Fatal("admitted too early")
	}
	if f.acquire(elsewhere); a.c.inbox.take() != elsewhere {
		t.Fatal("a reader of another block has to wait")
	}
	f.release(r1)
	if a.c.inbox.take() != w {
		t.Fatal("the writer is not the next")
	}
	f.release(w)
	if a.c.inbox.take() != r2 {
		t.Fatal("the reader does not follow")
	}
	f.release(r2)
	f.release(elsewhere)
}

func BenchmarkFence4K(b *testing.B) { benchmarkFence(b, 4096) }
func BenchmarkFence1M(b *testing.B) { benchmarkFence(b, 1<<20) }

func benchmarkFence(b *testing.B, n int64) {
	var f fence
	f.init(512)
	o := newActor().op(backend.OpWrite, 0, n)
	for b.Loop() {
		f.acquire(o)
		f.release(o)
	}
}
