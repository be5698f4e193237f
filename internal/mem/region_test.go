package mem

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestRegionUsage(t *testing.T) {
	const purpose = "test usage"
	page := os.Getpagesize()
	a := testutil.Value(Map(purpose, page+1))(t)
	b := testutil.Value(Map(purpose, 1<<30))(t)
	testutil.True(t, a.ID() != b.ID(), "two regions share an ID")
	if len(a.Bytes()) != 2*page || Addr(a.Bytes())%uint64(page) != 0 {
		t.Errorf("%d bytes at %#x", len(a.Bytes()), Addr(a.Bytes()))
	}
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
