package mem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

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
			testutil.MustTrue(tb, Length(segs) == n && a.Available() == before-need,
				"step %d: Alloc(%d) gave %d bytes and took %d", i, n, Length(segs),
				before-a.Available())
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

// policy returns the memory policy of an address: get_mempolicy(2), MPOL_F_ADDR.
func policy(t *testing.T, addr uint64) (mode int32, mask [maxNodes / 64]uint64) {
	t.Helper()
	const byAddress = 1 << 1
	_, _, e := syscall.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)),
		uintptr(unsafe.Pointer(&mask)), maxNodes,
		uintptr(addr), byAddress, 0)
	testutil.MustEqual(t, e, 0, "get_mempolicy")
	return mode, mask
}

func TestPrefer(t *testing.T) {
	var regions [3]*Region
	for i := range regions {
		r := testutil.Value(Map("place test", 3*4096))(t)
		regions[i] = r
		defer func() { testutil.Check(t, r.Unmap()) }()
	}
	testutil.Must(t, regions[0].Prefer(0))
	testutil.Check(t, regions[1].Follow(regions[0]))
	testutil.Check(t, regions[2].Follow(regions[2]))
	for i, want := range []int32{mpolPreferred, mpolPreferred, 0} {
		b := regions[i].Bytes()
		for _, at := range []int{0, len(b) - 1} {
			mode, mask := policy(t, Addr(b[at:]))
			testutil.True(t, mode == want && (want == 0 || mask == [maxNodes / 64]uint64{1}),
				"region %d, byte %d: mode %d, nodes %x; want mode %d", i, at, mode, mask[0], want)
		}
		b[0] = 1
	}
	for _, node := range []int{-1, maxNodes - 1, maxNodes} {
		testutil.True(t, regions[2].Prefer(node) != nil, "node %d is taken", node)
	}
}

// pageSize returns the size of the pages at an address, in bytes, from /proc/self/smaps.
func pageSize(t *testing.T, addr uint64) int {
	t.Helper()
	text := testutil.Value(os.ReadFile("/proc/self/smaps"))(t)
	inside := false
	for line := range bytes.Lines(text) {
		var from, to uint64
		if n, _ := fmt.Sscanf(string(line), "%x-%x ", &from, &to); n == 2 {
			inside = from <= addr && addr < to
		}
		if rest, ok := strings.CutPrefix(string(line), "KernelPageSize:"); ok && inside {
			kib := testutil.Value(strconv.Atoi(strings.Fields(rest)[0]))(t)
			return kib << 10
		}
	}
	t.Fatalf("no mapping at %#x", addr)
	return 0
}

// freeHugePages returns the number of free huge pages.
func freeHugePages(t *testing.T) int {
	t.Helper()
	count := map[string]int{}
	for _, name := range []string{"free_hugepages", "resv_hugepages"} {
		text, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/" + name)
		if err != nil {
			return 0 // a kernel without huge pages
		}
		if count[name], err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			t.Fatal(err)
		}
	}
	return count["free_hugepages"] - count["resv_hugepages"]
}

// TestArenaPages: arenas use huge pages while some are free, and work without.
func TestArenaPages(t *testing.T) {
	for _, size := range []int{2 * hugeSize, 2*hugeSize + BlockMin} {
		want := os.Getpagesize()
		if freeHugePages(t) >= 2 && size%hugeSize == 0 {
			want = hugeSize
		}
		a := testutil.Value(NewArena("place test", size))(t)
		b := a.Region().Bytes()
		if got := pageSize(t, Addr(b)); got != want || len(b) != size {
			t.Errorf("%d bytes: pages of %d bytes, want %d", len(b), got, want)
		}
		for i := range b {
			b[i] = byte(i)
		}
		testutil.Check(t, a.Close())
	}
	// More than any machine has free, so ordinary pages.
	b := testutil.Value(mapPages(1<<40, true))(t)
	got := pageSize(t, Addr(b))
	testutil.True(t, got == os.Getpagesize(), "1 TiB in pages of %d bytes", got)
	testutil.Check(t, unix.Munmap(b))
}

func TestRegionUsage(t *testing.T) {
	const purpose = "test usage"
	page := os.Getpagesize()
	a := testutil.Value(Map(purpose, page+1))(t)
	b := testutil.Value(Map(purpose, 1<<30))(t)
	testutil.True(t, a.ID() != b.ID(), "two regions share an ID")
	testutil.True(t, len(a.Bytes()) == 2*page && Addr(a.Bytes())%uint64(page) == 0,
		"%d bytes at %#x", len(a.Bytes()), Addr(a.Bytes()))
	testutil.Equal(t, Usage()[purpose], 2, "regions")
	for range 2 {
		testutil.Check(t, a.Unmap())
	}
	testutil.Equal(t, Usage()[purpose], 1, "regions")
	testutil.Check(t, b.Unmap())
	testutil.Equal(t, Usage()[purpose], 0, "regions at the end")
}

func TestRegionDiscard(t *testing.T) {
	page := os.Getpagesize()
	r := testutil.Value(Map("test discard", 3*page))(t)
	for i := range r.Bytes() {
		r.Bytes()[i] = 1
	}
	testutil.Must(t, r.Discard(page, page))
	for i, b := range r.Bytes() {
		testutil.MustTrue(t, (i/page == 1) != (b == byte(1)), "byte %d is %d", i, b)
	}
	testutil.Must(t, r.Unmap())
}

// TestRegionKeep: a kept region stays mapped, and so does its arena with allocated memory.
func TestRegionKeep(t *testing.T) {
	a := testutil.Value(NewArena("test keep", BlockMin))(t)
	segs, _ := a.Alloc(nil, BlockMin)
	a.Region().Keep(true)
	testutil.Check(t, a.Close())
	err := a.Region().Unmap()
	testutil.True(t, err == nil && a.Region().Bytes() != nil, "unmapped, %v", err)
	segs[0].B[0] = 1 // it is there
	a.Free(segs)
	a.Region().Keep(false)
	err = a.Close()
	testutil.True(t, err == nil && a.Region().Bytes() == nil, "still mapped, %v", err)
}

func TestRegionIsNotInherited(t *testing.T) {
	r := testutil.Value(Map("test dontfork", 1<<20))(t)
	defer func() { _ = r.Unmap() }()
	maps := testutil.Value(os.ReadFile("/proc/self/smaps"))(t)
	// VmFlags of the mapping must have "dc" (do not copy on fork) and "nr" (no swap space
	// reserved); see proc(5).
	found := false
	lo, hi, addr := uint64(0), uint64(0), Addr(r.Bytes())
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) > 4 && strings.Contains(f[0], "-") {
			lo, hi = parseRange(t, f[0])
		} else if f[0] == "VmFlags:" && lo <= addr && addr < hi {
			found = strings.Contains(line, " dc") && strings.Contains(line, " nr")
		}
	}
	testutil.True(t, found, "the mapping is not marked dc and nr")
}

func TestMapRefuses(t *testing.T) {
	for _, size := range []int{0, -1, 1 << 62} {
		testutil.Fails(t, testutil.Err(Map("test refuses", size)), "test refuses", "Map(%d)", size)
	}
}

func parseRange(t *testing.T, s string) (lo, hi uint64) {
	t.Helper()
	a, b, _ := strings.Cut(s, "-")
	lo, err1 := strconv.ParseUint(a, 16, 64)
	hi, err2 := strconv.ParseUint(b, 16, 64)
	testutil.MustTrue(t, err1 == nil && err2 == nil, "%q is not an address range", s)
	return lo, hi
}

func TestFind(t *testing.T) {
	r := testutil.Value(Map("test find", ChunkSize))(t)
	testutil.Equal(t, Find(r.ID()), r, "a mapped region is not found")
	testutil.Must(t, r.Unmap())
	testutil.True(t, Find(r.ID()) == nil, "a region is found that is not mapped any more")
}

func TestPinKeepsDiscardAway(t *testing.T) {
	r := testutil.Value(Map("test pin", 3*ChunkSize))(t)
	r.Bytes()[ChunkSize] = 1
	r.Pin(1)
	r.Pin(1)
	for _, tc := range []struct {
		off, n int
		want   error
	}{
		{0, ChunkSize, nil},
		{2 * ChunkSize, ChunkSize, nil},
		{ChunkSize, ChunkSize, ErrPinned},
		{2*ChunkSize - 4096, 8192, ErrPinned},
		{ChunkSize - 4096, 8192, ErrPinned},
	} {
		testutil.Is(t, r.Discard(tc.off, tc.n), tc.want, "Discard(%d, %d)", tc.off, tc.n)
	}
	testutil.Is(t, r.Collapse(0, ChunkSize), ErrPinned, "Collapse beside a pinned chunk")
	r.Unpin(1)
	testutil.Is(t, r.Discard(ChunkSize, ChunkSize), ErrPinned, "pinned once more")
	r.Unpin(1)
	if err := r.Discard(ChunkSize, ChunkSize); err != nil || r.Bytes()[ChunkSize] != 0 {
		t.Errorf("unpinned: %v, the memory holds %d", err, r.Bytes()[ChunkSize])
	}
	testutil.Must(t, r.Unmap())
}

// TestUnmapAsksFirst: devices with registered memory are called before it is unmapped, and can keep
// it.
func TestUnmapAsksFirst(t *testing.T) {
	r := testutil.Value(Map("test unmap", ChunkSize))(t)
	refuse, calls := errors.New("still in use"), 0
	_, ok := r.BeforeUnmap(func() error {
		if calls++; calls == 1 {
			return refuse
		}
		r.Unpin(0)
		return nil
	})
	cancel, ok2 := r.BeforeUnmap(func() error { t.Error("called after cancel"); return nil })
	testutil.MustTrue(t, ok && ok2 && r.Pin(0), "a mapped region is not to be had")
	cancel()
	err := r.Unmap()
	testutil.MustTrue(t, errors.Is(err, refuse) && r.Bytes() != nil, "first Unmap: %v", err)
	_, ok = r.BeforeUnmap(func() error { return nil })
	testutil.True(t, !ok && !r.Pin(0), "a region that is being unmapped was pinned")
	err = r.Unmap()
	testutil.MustTrue(t, err == nil && calls == 2, "second Unmap: %v, %d calls", err, calls)
}

func TestCopySegments(t *testing.T) {
	cut := func(text string, sizes ...int) (segs []Segment) {
		b := []byte(text)
		for _, n := range sizes {
			segs, b = append(segs, Segment{B: b[:n:n]}), b[n:]
		}
		return segs
	}
	for _, tt := range []struct {
		dst, src []int
		want     string
	}{
		{[]int{8}, []int{8}, "abcdefgh"},
		{[]int{3, 0, 5}, []int{1, 7}, "abcdefgh"},
		{[]int{1, 1, 6}, []int{4, 0, 2}, "abcdef.."},
		{[]int{2, 3}, []int{8}, "abcde"},
		{nil, []int{8}, ""},
	} {
		dst := cut("........", tt.dst...)
		CopySegments(dst, cut("abcdefgh", tt.src...))
		got := ""
		for _, s := range dst {
			got += string(s.B)
		}
		testutil.Equal(t, got, tt.want, "%v from %v", tt.dst, tt.src)
	}
}

func TestView(t *testing.T) {
	r := testutil.Value(Map("test view", 4096))(t)
	defer func() { _ = r.Unmap() }()
	words := View[atomic.Uint64](r.Bytes()[8:29])
	testutil.MustEqual(t, len(words), 2, "words")
	words[1].Store(1<<56 | 1)
	if b := r.Bytes(); b[16] != 1 || b[23] != 1 || b[15] != 0 || b[24] != 0 {
		t.Errorf("the word is not where it should be: %x", b[8:32])
	}
}
