package marks

import (
	"math/rand/v2"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestChangesKeepOrder: changes that are stored together are applied in order.
func TestChangesKeepOrder(t *testing.T) {
	block := backend.Range{End: 512}
	_, next := set(nil).apply([]*change{
		{Range: everything}, {Range: block, add: true},
	})
	testutil.True(t, next.size() == 512, "%v", next)
	grown, next := set(nil).apply([]*change{
		{Range: block, add: true}, {Range: everything},
	})
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
			r := backend.Range{Off: off * 512, End: (off + 1 + rnd.Int64N(64-off)) * 512}
			add := rnd.IntN(2) == 0
			if m = m.without(r); add {
				m = m.with(r)
			}
			for i := r.Off / 512; i < r.End/512; i++ {
				bits[i] = add
			}
			n := int64(0)
			for i, want := range bits {
				at, found := m.find(int64(i)*512, int64(i+1)*512)
				testutil.MustTrue(t, found == want && (!found || at == int64(i)*512),
					"block %d of %v: %v at %d, want %v", i, m, found, at, want)
				if want {
					n += 512
				}
			}
			if err := (&Kept{Ranges: m}).Validate(); err != nil || m.size() != n {
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
