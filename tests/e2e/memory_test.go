package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/fabric/tcp"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestQueueMemory opens queues until their memory is used up. The next one is refused, the log
// gives the reason, the others continue, and closing one makes room.
func TestQueueMemory(t *testing.T) {
	limit := func(o *Options) {
		o.TCP = func(c *tcp.Config) { c.Memory = 1 << 20 }
		o.RDMA = func(c *rdma.Config) { c.Memory = 6 << 20 }
	}
	eachTransport(t, limit, func(t *testing.T, h *Env, v Variant) {
		c := h.Dial(v)
		var open []*host.Queue
		for {
			q, err := c.OpenQueue(testutil.Context(t), uint16(len(open)+1), 128)
			if err != nil {
				break
			}
			open = append(open, q)
			testutil.MustTrue(t, len(open) <= 10, "there is no limit")
		}
		testutil.MustTrue(t, len(open) >= 2, "%d queues", len(open))
		h.Until("the log says why", func() bool { // written asynchronously
			return strings.Contains(h.Log.String(), "KiB of queue memory, their share")
		})
		for _, q := range open {
			h.Must(hosttest.Flush(testutil.Context(t), q, 1))
		}
		h.Ping(c)
		last := uint16(len(open))
		h.Must(open[last-1].Close())
		open = open[:last-1]
		h.Until("closing one makes room", func() bool {
			q, err := c.OpenQueue(testutil.Context(t), last, 128)
			if err == nil {
				open = append(open, q)
			}
			return err == nil
		})
		for _, q := range open {
			h.Must(q.Close())
		}
	})
}

// TestCopiedBytes counts the bytes that the target copies for commands on RAM namespaces: none for
// reads, even of blocks never written, none for writes of whole frames by R2T or RDMA READ, and the
// partial frames of other writes (docs/adr/0008). Data over iWARP, in-capsule data over RDMA and
// small in-capsule data over TCP is copied once.
func TestCopiedBytes(t *testing.T) {
	if _, counted := mem.Copied(); !counted {
		t.Skip("needs a build with the tag invariants, which counts copies")
	}
	eachVariant(t, nil, func(t *testing.T, h *Env, v Variant) {
		c := h.Dial(v)
		q := h.Open(c, 1, 33)
		small := 16 << 10 // in-capsule data received with its command
		if v.SmallPDUs {
			small = SmallPDU
		}
		for _, size := range []int{512, 4096, 8192, 16 << 10, 128 << 10, 1 << 20} {
			const ios, frame = 8, 16 << 10
			buf := h.Buffer(c, size)
			var done [64]host.Completion
			run := func(write bool, base int) int64 {
				t.Helper()
				before, _ := mem.Copied()
				var op host.Op
				for i := range ios {
					slba := uint64(base + i*size%(4<<20))
					if write {
						op.Write(1, slba/512, uint32(size/512), buf, 0)
					} else {
						op.Read(1, slba/512, uint32(size/512), buf)
					}
					testutil.Value(q.Submit(&op))(t)
					for q.Outstanding() > 0 {
						testutil.Must(t, collect(q, done[:]))
					}
				}
				after, _ := mem.Copied()
				return after - before
			}
			run(true, 0)
			// The memory is registered with RDMA devices when it is first used.
			h.Until("reads copy nothing", func() bool {
				return run(false, 0)+run(false, 32<<20) == 0
			})
			testutil.Equal(t, run(false, 0), 0, "copied bytes, %d reads of %d bytes", ios, size)
			testutil.Equal(t, run(false, 32<<20), 0,
				"%d reads of %d bytes that were never written bytes were copied", ios, size)
			bound := int64(ios * size)
			switch {
			case !v.IsRDMA && size <= small:
				// A capsule that arrives in two parts is first copied out of the receive buffer.
				h.Until(fmt.Sprintf("%d writes of %d bytes copy %d", ios, size, bound),
					func() bool { return run(true, 0) == bound })
				continue
			case v.IsRDMA && (size < frame || v.Options.IWARP):
				testutil.Equal(t, run(true, 0), bound,
					"%d writes of %d bytes bytes were copied", ios, size)
				continue
			}
			least := int64(0)
			if size < frame {
				least = bound
			}
			// With an offset the partial frames at both ends are copied.
			for base, want := range map[int]int64{0: least, 512: ios * int64(min(size, frame))} {
				if v.SmallPDUs {
					want += bound / 3 // small PDUs, each received with a part of the next one
				}
				// The memory is registered with RDMA devices when it is first used.
				what := fmt.Sprintf("%d writes of %d bytes from %d on copy at most %d", ios, size,
					base, want)
				h.Until(what, func() bool { return run(true, base) <= want })
			}
		}
	})
}

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
