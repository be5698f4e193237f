package mem

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
