package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// durations spreads deadlines out of order.
func durations(i int) time.Duration { return time.Duration(i * 7919 % 10_007 % 5000) }

// TestHeap compares the deadlines with a plain list of times.
func TestHeap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var d deadlines
	var hs [40]Handle
	want := map[*Handle]time.Duration{}
	now := time.Duration(1)
	for range 20_000 {
		h := &hs[r.IntN(len(hs))]
		switch r.IntN(6) {
		case 0:
			d.remove(h)
			delete(want, h)
		case 1:
			d.set(h, 0)
			delete(want, h)
		case 2:
			now += time.Duration(r.IntN(20))
			for at := d.first(); at != 0 && at <= now; at = d.first() {
				if h := d.pop(now); h != nil {
					testutil.MustTrue(t, want[h] != 0 && want[h] <= now, "expired at %d, want %d",
						now, want[h])
					delete(want, h)
				}
			}
			for _, at := range want {
				testutil.MustTrue(t, at > now, "deadline %d has not expired at %d", at, now)
			}
		default:
			at := now + time.Duration(r.IntN(100))
			d.set(h, at)
			want[h] = at
		}
		for i, e := range d.heap {
			testutil.MustTrue(t, e.h.deadline == i+1 && e.at >= d.heap[max(i-1, 0)/ways].at &&
				(e.h.at == 0 || e.at <= e.h.at), "entry %d of the heap", i)
		}
	}
}
