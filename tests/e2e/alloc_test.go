package e2e

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestZeroAllocation counts all allocations of the process - target, host, fake fabric - while a
// queue is kept full. After a warm-up, I/O allocates nothing.
func TestZeroAllocation(t *testing.T) {
	eachVariant(t, nil, func(t *testing.T, h *Env, v Variant) {
		if raceEnabled && v.IsRDMA {
			t.Skip("needs a build without the race detector, with which the completion channels " +
				"of verbstest allocate")
		}
		c := h.Dial(v)
		q := h.Open(c, 1, 33)
		for _, size := range []int{512, 4096, 131072} {
			buf := h.Buffer(c, q.Depth()*size)
			for _, write := range []bool{false, true} {
				ios := min(256, 4<<20/size)
				var op host.Op
				var done [64]host.Completion
				i := 0
				run := func() {
					for range ios {
						for q.Free() == 0 {
							testutil.Must(t, collect(q, done[:]))
						}
						i++
						data := buf[i%q.Depth()*size:][:size]
						if slba := uint64(i % 100 * size / 512); write {
							op.Write(1, slba, uint32(size/512), data, 0)
						} else {
							op.Read(1, slba, uint32(size/512), data)
						}
						testutil.Value(q.Submit(&op))(t)
					}
					for q.Outstanding() > 0 {
						testutil.Must(t, collect(q, done[:]))
					}
				}
				run() // buffers, free lists and tables grow
				run()
				// One run per sample, since timers allocate occasionally. On a slow machine they
				// do so in each, unless it is shorter.
				n, least := 1.0, ios/8
				for ; n > 0 && ios >= least; ios /= 2 {
					n = testutil.AllocsPerRun(1, run)
				}
				testutil.Equal(t, n, 0, "%d bytes, write %t: allocations in %d commands", size,
					write, 2*ios)
			}
		}
	})
}

// collect polls once and waits if there is no completion.
func collect(q *host.Queue, done []host.Completion) error {
	n, err := q.Poll(done)
	if err != nil {
		return err
	}
	for i := range done[:n] {
		if st := done[i].Status(); !st.OK() {
			return st
		}
	}
	if n == 0 {
		return q.Wait(time.Second)
	}
	return nil
}
