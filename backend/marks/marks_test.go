package marks

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestChangesKeepOrder: changes that are stored together are applied in order.
func TestChangesKeepOrder(t *testing.T) {
	block := mark{Range: backend.Range{End: 512}}
	_, next := set(nil).apply([]*change{{mark: everything}, {mark: block, add: true}})
	testutil.True(t, next.size() == 512, "%v", next)
	grown, next := set(nil).apply([]*change{{mark: block, add: true}, {mark: everything}})
	testutil.True(t, grown.size() == 512 && next == nil, "%v, %v", grown, next)
}

// TestMarks compares marks with one bit per block.
func TestMarks(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var m set
		var bits [64]bool
		for range 40 {
			off := rnd.Int64N(64)
			end := off + 1 + rnd.Int64N(64-off)
			r := mark{Range: backend.Range{Off: off * 512, End: end * 512}}
			add := rnd.IntN(2) == 0
			if m = m.without(r); add {
				m = m.with(r)
			}
			for i := r.Off / 512; i < r.End/512; i++ {
				bits[i] = add
			}
			n := int64(0)
			for i, want := range bits {
				at, _, found := m.find(int64(i)*512, int64(i+1)*512)
				testutil.MustTrue(t, found == want && (!found || at == int64(i)*512),
					"block %d of %v: %v at %d, want %v", i, m, found, at, want)
				if want {
					n += 512
				}
			}
			if err := (&Kept{Ranges: m.ranges()}).Validate(); err != nil || m.size() != n {
				t.Fatalf("%v: %d bytes, want %d, %v", m, m.size(), n, err)
			}
		}
	}
	for _, bad := range [][]backend.Range{
		{{Off: 0, End: 0}},
		{{Off: 512, End: 0}},
		{{Off: -512, End: 512}},
		{{Off: 0, End: 511}},
		{{Off: 0, End: 512}, {Off: 512, End: 1024}},
		{{Off: 1024, End: 2048}, {Off: 0, End: 512}},
		{{Off: 0, End: Max + 512}},
	} {
		testutil.True(t, (&Kept{Ranges: bad}).Validate() != nil, "%v are valid", bad)
	}
}

// slowChannel is a channel whose device carries out an IO when it comes, and returns it later.
type slowChannel struct {
	back []*backend.IO
	full bool
}

func (c *slowChannel) Arm() bool    { return true }
func (c *slowChannel) Close() error { return nil }

func (c *slowChannel) Submit(ios []*backend.IO) int {
	if c.full {
		return 0
	}
	return len(ios)
}

func (c *slowChannel) Poll(done []*backend.IO) int {
	n := copy(done, c.back)
	c.back = c.back[n:]
	return n
}

// TestWith: a block is marked if it is in either.
func TestWith(t *testing.T) {
	u := &Kept{"a", []backend.Range{{Off: 0, End: 1024}, {Off: 4096, End: 4608}}}
	got := u.With(&Kept{"a", []backend.Range{{Off: 512, End: 2048}, {Off: 2560, End: 3072}}})
	testutil.Equal(t, fmt.Sprint(*got), "{a [{0 2048} {2560 3072} {4096 4608}]}", "both")
	testutil.Equal(t, fmt.Sprint(*u.With(nil)), fmt.Sprint(*u), "of one")
}

// TestWriteBeforeMark: a write that the device had before its blocks were marked leaves the marks,
// because another write of the blocks may have come after it. One that begins later removes them.
func TestWriteBeforeMark(t *testing.T) {
	dev := new(slowChannel)
	u := New(nil, "", 1)
	u.Begin()
	c := u.Wrap(dev, func() {}, func() int64 { return 1 << 20 }, true)
	var done [4]*backend.IO
	do := func(op backend.Op, off, n int64) *backend.IO {
		io := &backend.IO{Op: op, Off: off, Len: n}
		testutil.Equal(t, c.Submit([]*backend.IO{io}), 1, "submitted")
		return io
	}
	back := func(ios ...*backend.IO) {
		t.Helper()
		dev.back = ios
		testutil.Equal(t, c.Poll(done[:]), len(ios), "completed")
	}
	mark := func(off, n int64) {
		t.Helper()
		do(backend.OpWriteUncorrectable, off, n)
		testutil.Equal(t, c.Poll(done[:]), 1, "completed")
	}
	before := do(backend.OpWrite, 0, 1024)
	mark(0, 512)
	back(before)
	testutil.True(t, u.Marked(0, 512), "a write from before the mark has removed it")

	// A write removes the marks from before it, and not the one that came while the device had it.
	after := do(backend.OpWriteZeroes, 0, 1024)
	mark(512, 512)
	back(after)
	testutil.True(t, !u.Marked(0, 512) && u.Marked(512, 512), "after the write: %v", u.now.Load())

	other := do(backend.OpWrite, 512, 512)
	u.Restore(&Kept{Ranges: []backend.Range{{Off: 512, End: 1024}}})
	back(other)
	testutil.True(t, !u.Marked(0, 512) && u.Marked(512, 512), "restored: %v", u.now.Load())

	failed := do(backend.OpWrite, 0, 1024)
	failed.Err = backend.ErrIO
	back(failed)
	testutil.True(t, u.Marked(512, 512), "a write that failed has removed a mark")
	back(do(backend.OpWrite, 512, 512))
	testutil.True(t, !u.Marked(0, 1024), "a mark is left")
}

// TestFullDevice: nothing is kept of a write of marked blocks that the device has not taken, which
// may be aborted.
func TestFullDevice(t *testing.T) {
	dev := new(slowChannel)
	u := New(nil, "", 1)
	u.Begin()
	c := u.Wrap(dev, func() {}, func() int64 { return 1 << 20 }, true).(*channel)
	mark := &backend.IO{Op: backend.OpWriteUncorrectable, Len: 512}
	write := &backend.IO{Op: backend.OpWrite, Len: 512}
	for _, ios := range [][]*backend.IO{{mark, write}, {write}, {write, mark}} {
		dev.full = true
		n := c.Submit(ios)
		testutil.True(t, n < len(ios) && len(c.writes) == 0, "%d taken, %d kept", n, len(c.writes))
	}
	dev.full = false
	testutil.Equal(t, c.Submit([]*backend.IO{write}), 1, "submitted")
	testutil.Equal(t, len(c.writes), 1, "writes of marked blocks")
}
