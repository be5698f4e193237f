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
)

// policy returns the memory policy of an address: get_mempolicy(2), MPOL_F_ADDR.
func policy(t *testing.T, addr uint64) (mode int32, mask [maxNodes / 64]uint64) {
	t.Helper()
	const byAddress = 1 << 1
	_, _, e := syscall.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)),
		uintptr(unsafe.Pointer(&mask)), maxNodes,
		uintptr(addr), byAddress, 0)
	if e != 0 {
		t.Fatalf("get_mempolicy: %v", e)
	}
	return mode, mask
}

func TestPrefer(t *testing.T) {
	var regions [3]*Region
	for i := range regions {
		r, err := Map("place test", 3*4096)
		if err != nil {
			t.Fatal(err)
		}
		regions[i] = r
		defer func() {
			if err := r.Unmap(); err != nil {
				t.Error(err)
			}
		}()
	}
	if err := regions[0].Prefer(0); err != nil {
		t.Fatal(err)
	}
	if err := regions[1].Follow(regions[0]); err != nil {
		t.Error(err)
	}
	if err := regions[2].Follow(regions[2]); err != nil {
		t.Error(err)
	}
	for i, want := range []int32{mpolPreferred, mpolPreferred, 0} {
		b := regions[i].Bytes()
		for _, at := range []int{0, len(b) - 1} {
			mode, mask := policy(t, Addr(b[at:]))
			if mode != want || want != 0 && mask != [maxNodes / 64]uint64{1} {
				t.Errorf("region %d, byte %d: mode %d, nodes %x; want mode %d", i, at, mode,
					mask[0], want)
			}
		}
		b[0] = 1
	}
	for _, node := range []int{-1, maxNodes - 1, maxNodes} {
		if err := regions[2].Prefer(node); err == nil {
			t.Errorf("node %d is taken", node)
		}
	}
}

// pageSize returns the size of the pages at an address, in bytes, from /proc/self/smaps.
func pageSize(t *testing.T, addr uint64) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range bytes.Lines(text) {
		var from, to uint64
		if n, _ := fmt.Sscanf(string(line), "%x-%x ", &from, &to); n == 2 {
			inside = from <= addr && addr < to
		}
		if rest, ok := strings.CutPrefix(string(line), "KernelPageSize:"); ok && inside {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("no mapping at %#x", addr)
	return 0
}

// freeHugePages returns how many huge pages are free.
func freeHugePages(t *testing.T) int {
	t.Helper()
	count := map[string]int{}
	for _, name := range []string{"free_hugepages", "resv_hugepages"} {
		text, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/" + name)
		if err != nil {
			return 0 // a kernel without
		}
		if count[name], err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			t.Fatal(err)
		}
	}
	return count["free_hugepages"] - count["resv_hugepages"]
}

// Arenas are in huge pages as long as some are free, and work without.
func TestArenaPages(t *testing.T) {
	for _, size := range []int{2 * hugeSize, 2*hugeSize + BlockMin} {
		want := os.Getpagesize()
		if freeHugePages(t) >= 2 && size%hugeSize == 0 {
			want = hugeSize
		}
		a, err := NewArena("place test", size)
		if err != nil {
			t.Fatal(err)
		}
		b := a.Region().Bytes()
		if got := pageSize(t, Addr(b)); got != want || len(b) != size {
			t.Errorf("%d bytes: pages of %d bytes, want %d", len(b), got, want)
		}
		for i := range b {
			b[i] = byte(i)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	// More than any machine has free: ordinary pages.
	b, err := mapPages(1<<40, true)
	if err != nil {
		t.Fatal(err)
	}
	if got := pageSize(t, Addr(b)); got != os.Getpagesize() {
		t.Errorf("1 TiB in pages of %d bytes", got)
	}
	if err := unix.Munmap(b); err != nil {
		t.Error(err)
	}
}
