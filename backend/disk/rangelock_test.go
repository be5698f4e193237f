package disk

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/list"

	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

func TestSpan(t *testing.T) {
	var r rangeLock
	r.init(512)
	const g = minUnit
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
		{(nUnits - 1) * g, g, span{a: nUnits - 1, b: nUnits}},
		{(nUnits - 1) * g, 2 * g, span{a: 0, b: 1, c: nUnits - 1, d: nUnits}},
		{7 * nUnits * g, g, span{a: 0, b: 1}},
		{3 * g, (nUnits - 1) * g, span{a: 0, b: 2, c: 3, d: nUnits}},
		{3 * g, nUnits * g, span{b: nUnits}},
		{512, 1 << 40, span{b: nUnits}},
	} {
		if got := r.span(tc.off, tc.n); got != tc.want {
			t.Errorf("span(%d, %d) = %v, want %v", tc.off, tc.n, got, tc.want)
		}
	}
	r.init(64 << 10)
	if got := r.span(64<<10, 64<<10); got != (span{a: 1, b: 2}) {
		t.Errorf("with blocks of 64 KiB: %v", got)
	}
}

func TestSpanWords(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		s := span{b: rnd.IntN(nUnits + 1), d: nUnits}
		s.a = rnd.IntN(s.b + 1)
		s.c = s.b + rnd.IntN(nUnits-s.b+1)
		var got [nUnits]bool
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

// actor locks and unlocks ranges as a channel does.
type actor struct {
	c     channel
	woken chan struct{}
}

func newActor() *actor {
	a := &actor{woken: make(chan struct{}, 1)}
	a.c.wake = func() {
		select {
		case a.woken <- struct{}{}:
		default:
		}
	}
	return a
}

// take returns the op that has been granted, nil if none has.
func (a *actor) take() *op {
	var ops list.List[op]
	a.c.inbox.Take(&ops)
	return ops.Pop()
}

// granted waits until an op of this actor has been granted.
func (a *actor) granted(t *testing.T) bool {
	for a.take() == nil {
		select {
		case <-a.woken:
		case <-time.After(testutil.Patience):
			t.Error("not granted")
			return false
		}
	}
	return true
}

func (a *actor) op(kind backend.Op, off, n int64) *op {
	return &op{c: &a.c, io: &backend.IO{Op: kind, Off: off, Len: n}, write: kind != backend.OpRead}
}

// TestRangeLockExcludes: a writer excludes all others from its range, readers share, and none waits
// for ever.
func TestRangeLockExcludes(t *testing.T) {
	var r rangeLock
	r.init(4096)
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
					off += nUnits * 4096 // shares the places
				}
				o := a.op(kind, off, int64(n)*4096)
				if !r.lock(o) && !a.granted(t) {
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
				r.unlock(o)
			}
		})
	}
	wg.Wait()
	if r.waiting.Load() != 0 || !r.queue.Empty() {
		t.Errorf("%d are still waiting", r.waiting.Load())
	}
	for i := range r.table {
		if n := r.table[i].Load(); n != 0 {
			t.Fatalf("place %d: %d", i, n)
		}
	}
}

// TestRangeLockIsFair: readers that come later do not overtake a writer that waits for readers,
// unless their blocks are others.
func TestRangeLockIsFair(t *testing.T) {
	var r rangeLock
	r.init(4096)
	a := newActor()
	r1, w, r2, elsewhere := a.op(backend.OpRead, 0, 8192), a.op(backend.OpWrite, 4096, 4096),
		a.op(backend.OpRead, 4096, 8192), a.op(backend.OpRead, 0, 4096)
	if !r.lock(r1) || r.lock(w) || r.lock(r2) {
		t.Fatal("a reader passes a writer that waits, or a writer a reader")
	}
	if a.take() != nil {
		t.Fatal("granted too early")
	}
	if r.lock(elsewhere); a.take() != elsewhere {
		t.Fatal("a reader of another block has to wait")
	}
	r.unlock(r1)
	if a.take() != w {
		t.Fatal("the writer is not the next")
	}
	r.unlock(w)
	if a.take() != r2 {
		t.Fatal("the reader does not follow")
	}
	r.unlock(r2)
	r.unlock(elsewhere)
}

func BenchmarkRangeLock4K(b *testing.B) { benchmarkRangeLock(b, 4096) }
func BenchmarkRangeLock1M(b *testing.B) { benchmarkRangeLock(b, 1<<20) }

func benchmarkRangeLock(b *testing.B, n int64) {
	var r rangeLock
	r.init(512)
	o := newActor().op(backend.OpWrite, 0, n)
	for b.Loop() {
		r.lock(o)
		r.unlock(o)
	}
}
