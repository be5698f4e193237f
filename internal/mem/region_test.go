package mem

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func usage(purpose string) PurposeUsage {
	for _, u := range Usage() {
		if u.Purpose == purpose {
			return u
		}
	}
	return PurposeUsage{}
}

func TestRegionUsage(t *testing.T) {
	const purpose = "test usage"
	page := os.Getpagesize()
	a := testutil.Value(Map(purpose, page+1))(t)
	b := testutil.Value(Reserve(purpose, 1<<30))(t)
	testutil.True(t, a.ID() != b.ID(), "two regions share an ID")
	if len(a.Bytes()) != 2*page || Addr(a.Bytes())%uint64(page) != 0 {
		t.Errorf("%d bytes at %#x", len(a.Bytes()), Addr(a.Bytes()))
	}
	b.Charge(100)
	u := usage(purpose)
	testutil.True(t, u.Regions == 2 && u.Bytes == int64(2*page+100), "usage is %+v", u)
	for range 2 {
		testutil.Check(t, a.Unmap())
	}
	u = usage(purpose)
	testutil.True(t, u.Regions == 1 && u.Bytes == 100, "usage is %+v", u)
	testutil.Check(t, b.Unmap())
	u = usage(purpose)
	testutil.True(t, u == (PurposeUsage{}), "usage is %+v at the end", u)
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

// cut makes segments of b with these lengths; the region of each is its index plus one.
func cut(b []byte, lengths ...int) (segs []Segment) {
	for i, n := range lengths {
		segs = append(segs, Segment{B: b[:n:n], Region: RegionID(i + 1)})
		b = b[n:]
	}
	return segs
}

func count(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func TestCursor(t *testing.T) {
	for _, lengths := range [][]int{
		{10},
		{3, 7},
		{0, 1, 0, 0, 8, 1, 0},
		{5, 5},
		{1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
	} {
		for off := range 12 {
			for step := 1; step < 12; step++ {
				b := count(10)
				c := NewCursor(cut(b, lengths...), off)
				testutil.MustEqual(t, c.Rest(), max(10-off, 0), "%v at %d: rest", lengths, off)
				var got []byte
				for s := c.Segment(); s != nil; s = c.Segment() {
					n := c.Next(step)
					testutil.MustTrue(t, len(n) != 0 && len(n) <= step && &n[0] == &b[off+len(got)],
						"%v at %d by %d: %d bytes after %d", lengths, off, step, len(n), len(got))
					got = append(got, n...)
				}
				testutil.MustTrue(t, bytes.Equal(got, b[min(off, 10):]) && c.Next(step) == nil &&
					c.Rest() == 0, "%v at %d by %d: %v", lengths, off, step, got)
			}
		}
	}
}

func TestCursorCopies(t *testing.T) {
	for off := range 12 {
		for n := range 14 {
			want := count(10)
			segs := cut(count(10), 0, 3, 0, 4, 3)
			c := NewCursor(segs, off)
			src := bytes.Repeat([]byte{0xEE}, n)
			moved := copy(want[min(off, 10):], src)
			testutil.MustEqual(t, c.CopyFrom(src), moved, "%d bytes at %d were filled", n, off)
			all, c := make([]byte, 10), NewCursor(segs, 0)
			testutil.MustTrue(t, c.CopyTo(all) == 10 && bytes.Equal(all, want),
				"%d bytes at %d: %v, want %v", n, off, all, want)
			clear(want[min(off, 10):min(off+n, 10)])
			c = NewCursor(segs, off)
			c.Clear(n)
			c = NewCursor(segs, 0)
			if c.CopyTo(all); !bytes.Equal(all, want) {
				t.Fatalf("%d zeroes at %d: %v, want %v", n, off, all, want)
			}
		}
	}
}

// TestCursorIsAValue: a copy continues from its position, and the segments do not change.
func TestCursorIsAValue(t *testing.T) {
	segs := cut(count(10), 4, 6)
	c := NewCursor(segs, 3)
	d := c
	c.Skip(5)
	if b := d.Next(9); len(b) != 1 || b[0] != 3 || d.Segment().Region != 2 {
		t.Error("a copy moved with its original")
	}
	testutil.True(t, len(segs[0].B) == 4 && len(segs[1].B) == 6, "the segments changed")
	var zero Cursor
	testutil.True(t, zero.Segment() == nil && zero.Next(1) == nil && zero.CopyFrom([]byte{1}) == 0,
		"the zero cursor has something")
}

func BenchmarkCursorNext(b *testing.B) {
	segs := cut(count(64), 16, 16, 16, 16)
	for b.Loop() {
		c := NewCursor(segs, 4)
		for c.Next(64) != nil {
		}
	}
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
	r := testutil.Value(Reserve("test view", 4096))(t)
	defer func() { _ = r.Unmap() }()
	words := View[atomic.Uint64](r.Bytes()[8:29])
	testutil.MustEqual(t, len(words), 2, "words")
	words[1].Store(1<<56 | 1)
	if b := r.Bytes(); b[16] != 1 || b[23] != 1 || b[15] != 0 || b[24] != 0 {
		t.Errorf("the word is not where it should be: %x", b[8:32])
	}
}

func TestFind(t *testing.T) {
	r := testutil.Value(Reserve("test find", ChunkSize))(t)
	testutil.Equal(t, Find(r.ID()), r, "a mapped region is not found")
	testutil.Must(t, r.Unmap())
	testutil.True(t, Find(r.ID()) == nil, "a region is found that is not mapped any more")
}

func TestPinKeepsDiscardAway(t *testing.T) {
	r := testutil.Value(Reserve("test pin", 3*ChunkSize))(t)
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
	r := testutil.Value(Reserve("test unmap", ChunkSize))(t)
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
