package e2e

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target"
)

// TestNoTornBlock has several queues write and read one block of 4096 bytes at once, on two
// reactors: every read must see one whole write (NVM section 2.1.4, AWUN).
func TestNoTornBlock(t *testing.T) {
	bothWays(t, func(o *options) { o.reactors = 2 }, func(t *testing.T, r *rig, w way) {
		c := r.connect(w)
		var wg sync.WaitGroup
		for i := range 4 {
			q := r.open(c, uint16(i+1), 9)
			buf := r.buffer(c, q.Depth()*8192)
			wg.Go(func() {
				for round := range 60 {
					err := pipeline(q, q.Depth(), func(op *host.Op, k int) {
						b := buf[k*8192:][:8192]
						if k%2 == 0 {
							fillBytes(b, byte(i*64+round))
							op.Write(2, 10, 2, b, 0)
						} else {
							op.Read(2, 10, 2, b)
						}
					})
					if err != nil {
						t.Error(err)
						return
					}
					for k := 1; k < q.Depth(); k += 2 {
						for block := range 2 {
							b := buf[k*8192+block*4096:][:4096]
							if n := bytes.Count(b, b[:1]); n != len(b) {
								t.Errorf("queue %d, round %d: a torn block: %d of %d bytes are %#x",
									i+1, round, n, len(b), b[0])
								return
							}
						}
					}
				}
			})
		}
		wg.Wait()
	})
}

// TestSubmissionQueueWraps sends more commands than a 16-bit counter has values, through queues of
// different sizes.
func TestSubmissionQueueWraps(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		t.Parallel()
		c := r.connect(w)
		for size, n := range map[int]int{2: 500, 3: 500, 64: 70000, 128: 1000} {
			q := r.open(c, 1, size)
			if err := pipeline(q, n, func(op *host.Op, _ int) { op.Flush(1) }); err != nil {
				t.Fatalf("queue of %d: %v", size, err)
			}
			r.must(q.Close())
			r.until("the queue identifier is free", func() bool { return r.target.Sessions() == 1 })
		}
	})
}

// hammer keeps q busy with reads and writes of nsid until one fails.
func hammer(q *host.Queue, nsid uint32, buf []byte, count *atomic.Int64) error {
	for {
		err := pipeline(q, q.Depth(), func(op *host.Op, i int) {
			if b := buf[i*4096:][:4096]; i%2 == 0 {
				op.Write(nsid, uint64(i*8), 8, b, 0)
			} else {
				op.Read(nsid, uint64(i*8), 8, b)
			}
		})
		if err != nil {
			return err
		}
		count.Add(1)
	}
}

// underLoad runs fn while a queue is busy with namespace nsid, and returns how the queue ended.
func underLoad(t *testing.T, r *rig, w way, nsid uint32, fn func(c *host.Controller)) error {
	t.Helper()
	c := r.connect(w)
	q := r.open(c, 1, 33)
	buf := r.buffer(c, q.Depth()*4096)
	var count atomic.Int64
	ended := make(chan error, 1)
	go func() { ended <- hammer(q, nsid, buf, &count) }()
	r.until("I/O is under way", func() bool { return count.Load() > 2 || len(ended) > 0 })
	fn(c)
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		t.Fatal("the queue hangs")
		return nil
	}
}

// wantRetry checks that a host which loses its queue tries again: the connection ended, or a
// command failed without DNR.
func wantRetry(t *testing.T, err error) {
	t.Helper()
	if st, ok := host.StatusOf(err); err == nil || ok && st&nvme.DNR != 0 || !ok &&
		!errors.Is(err, host.ErrClosed) {
		t.Errorf("the queue ended with %v", err)
	}
}

func TestStopUnderLoad(t *testing.T) {
	bothWays(t, func(o *options) { o.reactors = 2 }, func(t *testing.T, r *rig, w way) {
		wantRetry(t, underLoad(t, r, w, 1, func(*host.Controller) { r.stop() }))
		if _, err := host.Connect(testContext(t), r.transport(w), w.hostOptions()); err == nil {
			t.Error("connected to a target that has stopped")
		}
	})
}

func TestRemoveSubsystemUnderLoad(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		dev := r.ram(1<<20, 512)
		r.must(r.target.AddSubsystem(target.SubsystemConfig{
			NQN: otherSub, AllowAnyHost: true,
			Namespaces: []target.NamespaceConfig{{NSID: 1, Device: dev}},
		}))
		other := r.connect(w, func(o *host.Options) { o.SubNQN = otherSub })
		oq := r.open(other, 1, 16)
		err := underLoad(t, r, w, 1,
			func(*host.Controller) { r.must(r.target.RemoveSubsystem(subNQN)) })
		wantRetry(t, err)
		r.must(oq.Flush(testContext(t), 1))
		_, err = host.Connect(testContext(t), r.transport(w), w.hostOptions())
		var ce *host.ConnectError
		if !errors.As(err, &ce) || ce.Status.Code() != nvme.ConnectInvalidParameters {
			t.Errorf("connect to a removed subsystem: %v", err)
		}
	})
}

func TestRemoveNamespaceUnderLoad(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		err := underLoad(t, r, w, 1, func(c *host.Controller) {
			r.must(r.target.RemoveNamespace(subNQN, 1))
			r.ping(c)
		})
		if st, ok := host.StatusOf(err); !ok || st.Code() != nvme.InvalidNamespaceOrFormat {
			t.Errorf("the queue ended with %v", err)
		}
	})
}

func TestResetUnderLoad(t *testing.T) {
	bothWays(t, func(o *options) { o.reactors = 2 }, func(t *testing.T, r *rig, w way) {
		for range 5 {
			err := underLoad(t, r, w, 1, func(c *host.Controller) {
				r.must(c.Reset(context.Background()))
				r.must(c.Enable(context.Background()))
			})
			wantRetry(t, err)
		}
	})
}

// TestReadOnly checks a namespace that takes no writes.
func TestReadOnly(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		dev := r.ram(1<<20, 512)
		r.must(r.target.AddNamespace(subNQN,
			target.NamespaceConfig{NSID: 3, Device: dev, ReadOnly: true}))
		c := r.connect(w)
		ctx := testContext(t)
		ns, err := c.IdentifyNamespace(ctx, 3)
		r.must(err)
		if ns.NSATTR&nvme.NSATTRWriteProtected == 0 {
			t.Error("not shown as write protected")
		}
		q := r.open(c, 1, 16)
		buf := r.buffer(c, 8192)
		const protected = nvme.NamespaceWriteProtected | nvme.DNR
		r.must(q.Read(ctx, 3, 0, 16, buf))
		r.must(q.Flush(ctx, 3))
		wantStatus(t, "write", q.Write(ctx, 3, 0, 16, buf, 0), protected)
		wantStatus(t, "write zeroes", q.WriteZeroes(ctx, 3, 0, 16, 0), protected)
		(*nvme.DSMRange)(buf).Set(0, 8)
		wantStatus(t, "discard", q.Discard(ctx, 3, buf[:16]), protected)
	})
}

// TestLogTails reads more of logs than there is: the rest must be zero, or the command refused.
func TestLogTails(t *testing.T) {
	bothWays(t, nil, func(t *testing.T, r *rig, w way) {
		c := r.connect(w, func(o *host.Options) { o.SubNQN = nvme.DiscoveryNQN })
		h, _, err := c.Discover(testContext(t))
		r.must(err)
		end := nvme.DiscoveryHeaderSize + int(h.NUMREC)*nvme.DiscoveryEntrySize
		for _, off := range []int{0, nvme.DiscoveryHeaderSize, end - 4} {
			b, err := c.GetLog(testContext(t), nvme.LogDiscovery, 0, uint64(off), 8192, 0, false)
			if st, ok := host.StatusOf(err); !ok {
				t.Fatal(err)
			} else if !st.OK() {
				continue
			}
			if tail := b[min(end-off, len(b)):]; bytes.Count(tail, []byte{0}) != len(tail) {
				t.Errorf("offset %d: something follows the log", off)
			}
		}
		_, err = c.GetLog(testContext(t), nvme.LogDiscovery, 0, uint64(end)+4, 4096, 0, false)
		wantStatus(t, "past the end", err, nvme.InvalidField|nvme.DNR)
	})
}
