package mem

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func newArena(tb testing.TB, size int) *Arena {
	tb.Helper()
	a := testutil.Value(NewArena("test arena", size))(tb)
	tb.Cleanup(func() { testutil.Check(tb, a.Close()) })
	return a
}

// check walks the whole arena: each page is in exactly one run, cached block or listed block, and
// free buddies are merged.
func (a *Arena) check(tb testing.TB) {
	tb.Helper()
	owner := make([]string, len(a.run))
	claim := func(p int32, n int, who string) {
		for i := int(p); i < int(p)+n; i++ {
			testutil.MustTrue(tb, owner[i] == "", "page %d is both %s and %s", i, owner[i], who)
			owner[i] = who
		}
	}
	used := 0
	for p, n := range a.run {
		if n > 0 {
			claim(int32(p), int(n), "allocated")
			used += int(n)
		}
	}
	for o := range orders {
		for _, p := range a.cache[o] {
			claim(p, 1<<o, "cached")
		}
		testutil.MustTrue(tb, (a.head[o] != none) == (a.avail>>o&1 == 1),
			"avail %b disagrees with list %d", a.avail, o)
		prev := int32(none)
		for p := a.head[o]; p != none; p = a.next[p] {
			testutil.MustTrue(tb, a.prev[p] == prev && a.block[p] == uint8(o+1) && p&(1<<o-1) == 0,
				"list %d is broken at page %d", o, p)
			if b := p ^ 1<<o; o < maxOrder && int(b) < len(a.block) && a.block[b] == uint8(o+1) {
				tb.Fatalf("buddies %d and %d of order %d are both free", p, b, o)
			}
			claim(p, 1<<o, "listed")
			prev = p
		}
	}
	for p, who := range owner {
		testutil.MustTrue(tb, who != "", "page %d is lost", p)
	}
	testutil.MustTrue(tb, a.free == len(a.run)-used, "free is %d pages, want %d", a.free,
		len(a.run)-used)
}

// fill marks every page, first and last byte, so that an overlap destroys another allocation's
// marks.
func fill(segs []Segment, mark byte) {
	for _, s := range segs {
		for i := 0; i < len(s.B); i += BlockMin {
			s.B[i] = mark
		}
		s.B[len(s.B)-1] = mark
	}
}

func intact(segs []Segment, mark byte) bool {
	for _, s := range segs {
		for i := 0; i < len(s.B); i += BlockMin {
			if s.B[i] != mark {
				return false
			}
		}
		if s.B[len(s.B)-1] != mark {
			return false
		}
	}
	return true
}

// run interprets ops as a program of allocations and frees and checks the arena after each step.
func run(tb testing.TB, a *Arena, ops []uint16) {
	type alloc struct {
		segs []Segment
		mark byte
	}
	var live []alloc
	for i, op := range ops {
		if op&3 == 0 && len(live) > 0 {
			k := int(op>>2) % len(live)
			testutil.MustTrue(tb, intact(live[k].segs, live[k].mark),
				"step %d: an allocation was overwritten", i)
			for j := range live[k].segs {
				live[k].segs[j].B = live[k].segs[j].B[:1] // shortened at its end
			}
			a.Free(live[k].segs)
			live[k] = live[len(live)-1]
			live = live[:len(live)-1]
		} else {
			n := 1 + int(op)*int(op)%(3<<20)
			before := a.Available()
			segs, ok := a.Alloc(nil, n)
			need := (n + BlockMin - 1) &^ (BlockMin - 1)
			testutil.MustTrue(tb, ok == (need <= before),
				"step %d: Alloc(%d) is %v with %d available", i, n, ok, before)
			if !ok {
				testutil.MustTrue(tb, len(segs) == 0 && a.Available() == before,
					"step %d: a refused Alloc took something", i)
				continue
			}
			if Length(segs) != n || a.Available() != before-need {
				tb.Fatalf("step %d: Alloc(%d) gave %d bytes and took %d", i, n, Length(segs),
					before-a.Available())
			}
			for _, s := range segs {
				if Addr(s.B)%BlockMin != 0 || len(s.B) > BlockMax || s.Region != a.region.id {
					tb.Fatalf("step %d: bad segment at %#x, %d bytes", i, Addr(s.B), len(s.B))
				}
			}
			fill(segs, byte(i))
			live = append(live, alloc{segs, byte(i)})
		}
		a.check(tb)
	}
	for _, l := range live {
		testutil.MustTrue(tb, intact(l.segs, l.mark), "an allocation was overwritten")
		a.Free(l.segs)
	}
	a.merge()
	a.check(tb)
	testutil.MustTrue(tb, a.Available() == len(a.base), "%d of %d bytes came back", a.Available(),
		len(a.base))
}

func TestArenaRandom(t *testing.T) {
	for _, size := range []int{BlockMin, 7 * BlockMin, BlockMax - BlockMin, BlockMax, 5*BlockMax +
		3*BlockMin} {
		rnd := rand.New(rand.NewPCG(1, uint64(size)))
		ops := make([]uint16, 400)
		for i := range ops {
			ops[i] = uint16(rnd.Uint32())
			if rnd.IntN(2) == 0 {
				ops[i] &= 0xff // small ones
			}
		}
		run(t, newArena(t, size), ops)
	}
}

func FuzzArena(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{255, 255, 4, 0, 255, 254, 0, 1})
	f.Fuzz(func(t *testing.T, prog []byte) {
		ops := make([]uint16, 0, 200)
		for ; len(prog) >= 2 && len(ops) < cap(ops); prog = prog[2:] {
			ops = append(ops, uint16(prog[0])|uint16(prog[1])<<8)
		}
		run(t, newArena(t, 2*BlockMax+5*BlockMin), ops)
	})
}

func TestArenaSegments(t *testing.T) {
	for _, tc := range []struct{ n, segs int }{
		{1, 1},
		{512, 1},
		{BlockMin, 1},
		{BlockMin + 1, 1},
		{3 * BlockMin, 1},
		{132 << 10, 1},
		{BlockMax, 1},
		{BlockMax + 1, 2},
		{3*BlockMax + 5*BlockMin, 4},
	} {
		a := newArena(t, 8*BlockMax)
		segs, ok := a.Alloc(nil, tc.n)
		testutil.True(t, ok && len(segs) == tc.segs, "Alloc(%d): %v, %d segments, want %d", tc.n,
			ok, len(segs), tc.segs)
		a.Free(segs)
	}
}

func TestArenaLowAddressesFirst(t *testing.T) {
	a := newArena(t, 8*BlockMax)
	for i := range 3 {
		segs, _ := a.Alloc(nil, 10*BlockMin)
		testutil.Equal(t, Addr(segs[0].B)-Addr(a.base), 0, "round %d: offset", i)
		a.Free(segs)
	}
}

// TestArenaStaysUnpopulated: bookkeeping does not access blocks, so the kernel supplies only pages
// that were written.
func TestArenaStaysUnpopulated(t *testing.T) {
	if invariants {
		t.Skip("the build tag invariants overwrites freed memory")
	}
	a := newArena(t, 8*BlockMax)
	present := func() (n int) {
		f := testutil.Value(os.Open("/proc/self/pagemap"))(t)
		defer func() { _ = f.Close() }()
		page := uint64(os.Getpagesize())
		entries := make([]byte, uint64(len(a.base))/page*8)
		testutil.Value(f.ReadAt(entries, int64(Addr(a.base)/page*8)))(t)
		for ; len(entries) > 0; entries = entries[8:] {
			// bit 63: page present, see pagemap(5)
			n += int(binary.NativeEndian.Uint64(entries) >> 63)
		}
		return n
	}
	for range 100 {
		var segs []Segment
		for _, n := range []int{BlockMin, 3 * BlockMin, 100 * BlockMin, 3 * BlockMax} {
			segs, _ = a.Alloc(segs, n)
		}
		a.Free(segs)
	}
	testutil.Equal(t, present(), 0, "pages are populated, none was written")
	for range 100 { // one block at a time is always the same one
		segs, _ := a.Alloc(nil, BlockMin)
		segs[0].B[0] = 1
		a.Free(segs)
	}
	want := 1
	if huge := pageSize(t, Addr(a.base)); huge == hugeSize { // the machine has free ones
		want = huge / os.Getpagesize()
	}
	testutil.Equal(t, present(), want, "pages are populated")
}

func TestArenaFragmented(t *testing.T) {
	a := newArena(t, BlockMax)
	var all []Segment
	for a.Available() > 0 {
		all, _ = a.Alloc(all, BlockMin)
	}
	var odd []Segment
	for i, s := range all {
		if i%2 == 1 {
			odd = append(odd, s)
		} else {
			a.Free([]Segment{s})
		}
	}
	a.check(t)
	segs, ok := a.Alloc(nil, BlockMax/2)
	testutil.MustTrue(t, ok && len(segs) == 128 && a.Available() == 0,
		"%v, %d segments, %d bytes left", ok, len(segs), a.Available())
	_, ok = a.Alloc(nil, 1)
	testutil.MustTrue(t, !ok, "memory out of nothing")
	a.Free(segs)
	a.Free(odd)
}

func TestArenaMisuse(t *testing.T) {
	testutil.True(t, testutil.Err(NewArena("test arena", 0)) != nil, "an arena of 0 bytes")
	a := newArena(t, BlockMax)
	segs, _ := a.Alloc(nil, 3*BlockMin)
	testutil.MustTrue(t, a.Close() != nil, "closed with memory out")
	mustPanic := func(what string, segs []Segment) {
		defer func() { testutil.True(t, recover() != nil, "%s: no panic", what) }()
		a.Free(segs)
	}
	mustPanic("moved", []Segment{{B: segs[0].B[BlockMin:]}})
	mustPanic("unaligned", []Segment{{B: segs[0].B[1:]}})
	mustPanic("foreign", []Segment{{B: make([]byte, 4096)}})
	mustPanic("empty", []Segment{{}})
	a.Free(segs)
	mustPanic("twice", segs)
}

func TestArenaNoAlloc(t *testing.T) {
	a := newArena(t, 16*BlockMax)
	segs := make([]Segment, 0, 64)
	for _, n := range []int{512, BlockMin, 12 << 10, 128 << 10, BlockMax, 4 * BlockMax} {
		if got := testing.AllocsPerRun(100, func() {
			s, ok := a.Alloc(segs, n)
			testutil.MustTrue(t, ok, "out of memory")
			a.Free(s)
		}); got != 0 {
			t.Errorf("Alloc(%d) and Free allocate %v times", n, got)
		}
	}
}

func BenchmarkArena(b *testing.B) {
	for _, bc := range []struct {
		name string
		n    int
	}{{"4K", 4 << 10}, {"12K", 12 << 10}, {"128K", 128 << 10}, {"1M", 1 << 20}} {
		b.Run(bc.name, func(b *testing.B) {
			a := newArena(b, 16*BlockMax)
			segs := make([]Segment, 0, 4)
			b.ReportAllocs()
			for b.Loop() {
				s, _ := a.Alloc(segs, bc.n)
				a.Free(s)
			}
		})
	}
}
