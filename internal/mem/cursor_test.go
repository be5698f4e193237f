package mem

import (
	"bytes"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
