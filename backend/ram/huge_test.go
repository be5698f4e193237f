package ram

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// inHugePages returns the size of the anonymous memory of this process in huge pages, in kB
// (proc(5), smaps_rollup).
func inHugePages(t *testing.T) (kb int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		t.Skipf("the kernel does not report huge pages: %v", err)
	}
	_, rest, _ := strings.Cut(string(text), "AnonHugePages:")
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		t.Skipf("no AnonHugePages in smaps_rollup: %v", err)
	}
	return kb
}

// count returns the number of areas that passes have moved, or tried to.
func (h *huge) count() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, tried := range h.tried {
		if tried {
			n++
		}
	}
	return n
}

// TestHugePages: fully written memory, and no other, moves into huge pages, with its data, and
// counts as moved until it is discarded.
func TestHugePages(t *testing.T) {
	const size = 16 << 20
	d := mustOpen(t, size, 4096).(*device)
	asked := 0
	d.frames.filled = func() { asked++ } // passes begin here
	d.huge.pause = 1
	c := backendtest.NewClient(t, d, 2<<20)
	data, got := c.Memory(0, 1<<20), c.Memory(1<<20, 1<<20)
	pattern := func(off int64) {
		for i := range data {
			data[i] = byte(off>>20) + byte(i*7)
		}
	}
	before := inHugePages(t)
	c.MustDo(c.Write(0, data[:8192]))
	d.collapse()
	testutil.MustEqual(t, d.huge.count(), 0, "areas with one frame each were moved")
	for off := int64(0); off < size; off += 1 << 20 {
		pattern(off)
		c.MustDo(c.Write(off, data))
	}
	testutil.True(t, asked != 0, "no pass was asked for")
	d.collapse()
	able := !d.huge.pending.Load() // otherwise the kernel has refused for good
	if n := d.huge.count(); able && n < size>>chunkShift-2 {
		t.Errorf("%d areas of %d were dealt with", n, size>>chunkShift)
	}
	after := inHugePages(t)
	for off := int64(0); off < size; off += 1 << 20 {
		pattern(off)
		c.MustDo(c.Read(off, got))
		testutil.MustTrue(t, bytes.Equal(got, data), "other data at %d", off)
	}
	c.MustDo(&backend.IO{Op: backend.OpDiscard, Len: size})
	d.collapse()
	if n := d.huge.count(); able && n != 0 || used(d) != 0 {
		t.Errorf("after a discard of everything %d areas count as moved, %d bytes are populated", n,
			used(d))
	}
	if c.MustDo(c.Read(0, got)); !bytes.Equal(got, make([]byte, len(got))) {
		t.Error("what was discarded does not read as zeroes")
	}
	c.Close()
	testutil.Must(t, d.Close())
	if !able || after <= before {
		t.Skipf("this kernel has no huge pages for us: %d kB before, %d kB after", before, after)
	}
}

// TestHugePagesOfDevices: memory that a device has registered does not move.
func TestHugePagesOfDevices(t *testing.T) {
	const size = 8 << 20
	d := mustOpen(t, size, 4096).(*device)
	d.frames.filled = func() {} // no pass but ours
	c := backendtest.NewClient(t, d, 1<<20)
	for off := int64(0); off < size; off += 1 << 20 {
		c.MustDo(c.Write(off, c.Memory(0, 1<<20)))
	}
	testutil.MustTrue(t, d.frames.region.Pin(0), "the region is being unmapped")
	d.collapse()
	if n := d.huge.count(); n > 1 || !d.huge.pending.Load() {
		t.Errorf("%d areas were dealt with, no more passes: %v", n, d.huge.pending.Load())
	}
	d.frames.region.Unpin(0)
	c.Close()
	testutil.Must(t, d.Close())
}

func TestNever(t *testing.T) {
	name := filepath.Join(t.TempDir(), "enabled")
	testutil.True(t, !disabled(name), "a kernel that has no such setting")
	for text, want := range map[string]bool{
		"always madvise [never]\n": true,
		"always [madvise] never\n": false, "[always] madvise never\n": false,
	} {
		testutil.Must(t, os.WriteFile(name, []byte(text), 0o600))
		testutil.True(t, disabled(name) == want, "%q: %v", text, !want)
	}
}

// TestHugePagesEnd: Close ends a pass at once, even one in a long sleep.
func TestHugePagesEnd(t *testing.T) {
	d := mustOpen(t, 64<<20, 4096).(*device)
	d.huge.pause = 1e9 // years
	c := backendtest.NewClient(t, d, 1<<20)
	for off := int64(0); off < 64<<20; off += 1 << 20 {
		c.MustDo(c.Write(off, c.Memory(0, 1<<20)))
	}
	c.Close()
	ended := make(chan struct{})
	go func() { d.collapse(); close(ended) }()
	for begun := false; !begun; runtime.Gosched() {
		select {
		case <-ended: // this kernel has no huge pages for us
			begun = true
		default:
			if begun = !d.huge.mu.TryLock(); !begun {
				d.huge.mu.Unlock()
			}
		}
	}
	testutil.Check(t, d.Close())
	<-ended
	n := d.huge.count()
	testutil.True(t, n <= 1, "%d areas without a pause", n)
}
