package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestReadWrite writes and reads back data of many sizes: one block, around the in-capsule data
// size, around pages and the blocks of the arena, up to MDTS.
func TestReadWrite(t *testing.T) {
	t.Parallel()
	eachVariant(t, nil, func(t *testing.T, h *Env, v Variant) {
		c := h.Dial(v)
		q := h.Open(c, 1, 32)
		testutil.MustTrue(t, c.MaxTransfer() == MDTS, "MDTS is %d bytes", c.MaxTransfer())
		ctx := testutil.Context(t)
		buf := h.Buffer(c, 2*MDTS)
		for nsid, bs := range map[uint32]int{1: 512, 2: 4096} {
			for _, size := range []int{
				512, 1024, 3584, 4096, 4608, 8192, 12288, 16384, 16896, 20480, 65536, 69632, 131072,
				262144, 524288, MDTS - 4096, MDTS,
			} {
				if size%bs != 0 {
					continue
				}
				data, back := buf[:size], buf[MDTS:][:size]
				pattern(data, uint32(size))
				clear(back)
				slba := uint64(rand.IntN(100))
				blocks := uint32(size / bs)
				testutil.MustEqual(t, hosttest.Write(ctx, q, nsid, slba, blocks, data, 0), nil,
					"write %d bytes", size)
				testutil.MustEqual(t, hosttest.Read(ctx, q, nsid, slba, blocks, back), nil,
					"read %d bytes", size)
				testutil.MustEqual(t, Differ(back, data), "", "%d bytes", size)
			}
			over := buf[:MDTS+bs]
			n := uint32(len(over) / bs)
			wantStatus(t, "read beyond MDTS", hosttest.Read(ctx, q, nsid, 0, n, over),
				nvme.InvalidField|nvme.DNR)
			wantStatus(t, "write beyond MDTS", hosttest.Write(ctx, q, nsid, 0, n, over, 0),
				nvme.InvalidField|nvme.DNR)
		}
	})
}

// TestManyQueues verifies data on many queues concurrently. Each goroutine has its own queue and
// part of the namespace.
func TestManyQueues(t *testing.T) {
	t.Parallel()
	const queues = 8
	eachVariant(t, func(o *Options) { o.Reactors = 2; o.QueueDepth = 64 },
		func(t *testing.T, h *Env, v Variant) {
			c := h.Dial(v)
			if n, err := c.SetQueueCount(testutil.Context(t), queues); n != queues || err != nil {
				t.Fatalf("%d queues granted: %v", n, err)
			}
			var wg sync.WaitGroup
			for i := range queues {
				q := h.Open(c, uint16(i+1), 17+i*4)
				buf := h.Buffer(c, q.Depth()*32768)
				wg.Go(func() {
					testutil.Equal(t, verify(q, uint64(i)*16384, buf, testutil.Rounds(2, 8)), nil,
						"queue %d", i+1)
				})
			}
			wg.Wait()
		})
}

// verify keeps q full of writes of mixed sizes, then of reads of the same blocks, and compares.
func verify(q *host.Queue, slba uint64, buf []byte, rounds int) error {
	const most = 32768
	n := len(buf) / most
	sizes := make([]int, n)
	want := make([]byte, most)
	for round := range rounds {
		for i := range sizes {
			sizes[i] = 512 << rand.IntN(7)
			pattern(buf[i*most:][:sizes[i]], uint32(round*n+i))
		}
		for _, write := range []bool{true, false} {
			err := pipeline(q, n, func(op *host.Op, i int) {
				data := buf[i*most:][:sizes[i]]
				if at, blocks := slba+uint64(i*most/512), uint32(sizes[i]/512); write {
					op.Write(1, at, blocks, data, 0)
				} else {
					clear(data)
					op.Read(1, at, blocks, data)
				}
			})
			if err != nil {
				return fmt.Errorf("round %d, write %t: %w", round, write, err)
			}
		}
		for i := range sizes {
			pattern(want[:sizes[i]], uint32(round*n+i))
			if got := buf[i*most:][:sizes[i]]; !bytes.Equal(got, want[:sizes[i]]) {
				return fmt.Errorf("round %d, buffer %d: %s", round, i, Differ(got, want))
			}
		}
	}
	return nil
}

// pipeline submits n commands, as many at a time as q accepts, and waits for all.
func pipeline(q *host.Queue, n int, prepare func(op *host.Op, i int)) error {
	var op host.Op
	var done [32]host.Completion
	for next := 0; next < n || q.Outstanding() > 0; {
		for ; next < n && q.Free() > 0; next++ {
			prepare(&op, next)
			op.Token = uint64(next)
			if _, err := q.Submit(&op); err == host.ErrFull {
				break
			} else if err != nil {
				return err
			}
		}
		k, err := q.Poll(done[:])
		if err != nil {
			return err
		}
		for i := range done[:k] {
			if st := done[i].Status(); !st.OK() {
				return fmt.Errorf("command %d: %w", done[i].Token, st)
			}
		}
		if k == 0 {
			if err := q.Wait(time.Second); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestMemoryPressure has more data outstanding than the target has memory for: commands wait, and
// all of them succeed.
func TestMemoryPressure(t *testing.T) {
	t.Parallel()
	const queues, depth = 2, 12
	smallStaging := func(c *rdma.Config) { c.StagingSize = 2 << 20 }
	eachVariant(t, func(o *Options) { o.Memory, o.RDMA = 8, smallStaging },
		func(t *testing.T, h *Env, v Variant) {
			c := h.Dial(v)
			var wg sync.WaitGroup
			for i := range queues {
				q := h.Open(c, uint16(i+1), depth+1)
				buf := h.Buffer(c, depth*MDTS)
				want := make([]byte, MDTS)
				pattern(want, uint32(i))
				wg.Go(func() {
					for round := range 2 {
						err := pipeline(q, depth, func(op *host.Op, k int) {
							data := buf[k*MDTS:][:MDTS]
							copy(data, want)
							op.Write(1, uint64((i*depth+k)*MDTS/512), MDTS/512, data, 0)
						})
						if err == nil {
							err = pipeline(q, depth, func(op *host.Op, k int) {
								data := buf[k*MDTS:][:MDTS]
								clear(data[:4096])
								op.Read(1, uint64((i*depth+k)*MDTS/512), MDTS/512, data)
							})
						}
						if err != nil {
							t.Errorf("queue %d, round %d: %v", i+1, round, err)
							return
						}
						for k := range depth {
							if d := Differ(buf[k*MDTS:][:MDTS], want); d != "" {
								t.Errorf("queue %d, round %d, command %d: %s", i+1, round, k, d)
								return
							}
						}
					}
				})
			}
			wg.Wait()
		})
}
