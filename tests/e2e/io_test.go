package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric/rdma"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/tests/harness"
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

func TestOtherCommands(t *testing.T) {
	t.Parallel()
	eachVariant(t, nil, func(t *testing.T, h *Env, v Variant) {
		c := h.Dial(v)
		q := h.Open(c, 1, 32)
		ctx := testutil.Context(t)
		buf := h.Buffer(c, 64<<10)
		back := h.Buffer(c, 64<<10)
		pattern(buf, 1)
		h.Must(hosttest.Write(ctx, q, 1, 0, 128, buf, nvme.RWFUA))
		h.Must(hosttest.Flush(ctx, q, 1))
		h.Must(hosttest.Flush(ctx, q, nvme.NSIDAll))
		h.Must(hosttest.WriteZeroes(ctx, q, 1, 8, 8, 0))
		clear(buf[8*512 : 16*512])
		h.Must(hosttest.WriteZeroes(ctx, q, 1, 64, 16, nvme.RWDeallocate|nvme.RWFUA))
		clear(buf[64*512 : 80*512])
		ranges := h.Buffer(c, 2*nvme.DSMRangeSize)
		(*nvme.DSMRange)(ranges).Set(96, 8)
		(*nvme.DSMRange)(ranges[16:]).Set(120, 8)
		h.Must(hosttest.Discard(ctx, q, 1, ranges))
		clear(buf[96*512 : 104*512])
		clear(buf[120*512 : 128*512])
		h.Must(hosttest.Read(ctx, q, 1, 0, 128, back))
		testutil.MustEqual(t, Differ(back, buf), "", "")
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

// wideDevice has physical blocks of 64 KiB.
type wideDevice struct{ backend.Device }

func (d wideDevice) Info() backend.Info {
	i := d.Device.Info()
	i.PhysicalBlockSize = 64 << 10
	return i
}

// TestCompare: Compare, and fused Compare and Write, with data in the capsule and transferred, over
// every variant of the transports.
func TestCompare(t *testing.T) {
	t.Parallel()
	for _, v := range Variants {
		t.Run(v.Name, func(t *testing.T) {
			o := v.Options
			o.Devices = []backend.Device{wideDevice{harness.OpenRAM(t, 4<<20, 512)}}
			testCompare(t, New(t, o), v)
		})
	}
}

func testCompare(t *testing.T, h *Env, v Variant) {
	c := h.Dial(v)
	q := h.Open(c, 1, 32)
	ctx := testutil.Context(t)
	buf := h.Buffer(c, 2*MDTS)
	old, data := buf[:MDTS], buf[MDTS:]
	pattern(old, 1)
	pattern(data, 2)
	const failed = nvme.CompareFailure | nvme.DNR
	for _, size := range []int{512, 4096, 4608, 8192, 65536, MDTS} {
		blocks := uint32(size / 512)
		h.Must(hosttest.Write(ctx, q, 1, 1, blocks, old[:size], 0))
		h.Must(hosttest.Compare(ctx, q, 1, 1, blocks, old[:size]))
		h.Must(hosttest.Verify(ctx, q, 1, 1, blocks))
		old[size-1] ^= 1
		wantStatus(t, "Compare of something else", hosttest.Compare(ctx, q, 1, 1, blocks,
			old[:size]), failed)
		old[size-1] ^= 1
		if size > 64<<10 {
			continue
		}
		for range 3 { // old, data, and the other way round
			for i, want := range [][2]nvme.Status{
				{nvme.Success, nvme.Success}, {failed, nvme.AbortedFailedFused},
			} {
				st := testutil.Value(
					hosttest.CompareAndWrite(ctx, q, 1, 1, blocks, old[:size], data[:size]))(h.T)
				testutil.True(t, st[0]&^nvme.More == want[0] && st[1]&^nvme.More == want[1],
					"%d bytes, try %d: %v, %v", size, i, st[0], st[1])
			}
			h.Must(hosttest.Compare(ctx, q, 1, 1, blocks, data[:size]))
			old, data = data, old
		}
		pattern(old, 1)
		pattern(data, 2)
	}
}

// TestCopy copies within a namespace and between two, over every variant of the transports.
func TestCopy(t *testing.T) {
	t.Parallel()
	eachVariant(t, nil, func(t *testing.T, h *Env, v Variant) {
		h.Must(h.Target.AddNamespace(SubNQN, namespaces.Config{NSID: 3, Device: h.RAM(4<<20, 512)}))
		c := h.Dial(v)
		q := h.Open(c, 1, 32)
		ctx := testutil.Context(t)
		var enable host.Op
		enable.SQE.SetOpcode(nvme.AdminSetFeatures)
		enable.SQE.Features().Set(nvme.FeatureHostBehavior, 0)
		enable.Data = make([]byte, nvme.HostBehaviorSize)
		enable.Data[nvme.HostBehaviorCDFE] = byte(nvme.CopyNamespaces.Bit())
		cqe, err := c.Admin(ctx, &enable)
		if h.Must(err); !cqe.Status().OK() {
			t.Fatal(cqe.Status())
		}
		data, back := h.Buffer(c, MDTS), h.Buffer(c, MDTS)
		pattern(data, 7)
		h.Must(hosttest.Write(ctx, q, 3, 0, MDTS/512, data, 0))
		ranges := h.Buffer(c, 2*nvme.CopyRangeSize)
		for i, half := range []uint64{MDTS / 1024, 0} { // exchanged
			(*nvme.CopyRange)(ranges[i*nvme.CopyRangeSize:]).Set(3, half, MDTS/1024)
		}
		h.Must(hosttest.Copy(ctx, q, 1, 100, nvme.CopyNamespaces, ranges, nvme.RWFUA))
		h.Must(hosttest.Read(ctx, q, 1, 100, MDTS/512, back))
		exchanged := append(append([]byte{}, data[MDTS/2:]...), data[:MDTS/2]...)
		testutil.Equal(t, Differ(back, exchanged), "", "between namespaces")
		h.Must(hosttest.Copy(ctx, q, 3, MDTS/512, nvme.CopyRanges, ranges, 0))
		h.Must(hosttest.Compare(ctx, q, 3, MDTS/512, MDTS/512, back))
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
