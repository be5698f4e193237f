package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// TestSubmissionQueueWraps sends more commands than a 16-bit counter can count, through queues of
// different sizes.
func TestSubmissionQueueWraps(t *testing.T) {
	t.Parallel()
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		t.Parallel()
		c := h.Dial(v)
		for size, n := range map[int]int{2: 500, 3: 500, 64: 70000, 128: 1000} {
			q := h.Open(c, 1, size)
			testutil.MustEqual(t, pipeline(q, n, func(op *host.Op, _ int) { op.Flush(1) }), nil,
				"queue of %d", size)
			h.Must(q.Close())
			h.Until("the queue identifier is free", func() bool { return h.Target.Sessions() == 1 })
		}
	})
}

// keepBusy runs reads and writes of nsid on q until one fails.
func keepBusy(q *host.Queue, nsid uint32, buf []byte, count *atomic.Int64) error {
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

// underLoad runs fn while a queue is busy with namespace nsid, and returns the error that ended the
// queue.
func underLoad(t *testing.T, h *Env, v Variant, nsid uint32,
	fn func(c *host.Controller),
) error {
	t.Helper()
	c := h.Dial(v)
	q := h.Open(c, 1, 33)
	buf := h.Buffer(c, q.Depth()*4096)
	var count atomic.Int64
	ended := make(chan error, 1)
	go func() { ended <- keepBusy(q, nsid, buf, &count) }()
	h.Until("I/O is in progress", func() bool { return count.Load() > 2 || len(ended) > 0 })
	fn(c)
	return testutil.Receive(t, "the queue ends", ended)
}

// wantRetry checks that the host may retry after the end of its queue: the connection ended, or a
// command failed without DNR.
func wantRetry(t *testing.T, err error) {
	t.Helper()
	if st, ok := hosttest.StatusOf(err); err == nil || ok && st&nvme.DNR != 0 || !ok &&
		!errors.Is(err, host.ErrClosed) {
		t.Errorf("the queue ended with %v", err)
	}
}

func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(o *Options) { o.Reactors, o.Port = 2, testutil.FreePort(t) },
		func(t *testing.T, h *Env, v Variant) {
			wantRetry(t, underLoad(t, h, v, 1, func(*host.Controller) { h.Stop() }))
			_, err := host.Connect(testutil.Context(t), h.Transport(v), v.HostOptions())
			testutil.True(t, err != nil, "connected to a target that has stopped")
		})
}

func TestRemoveSubsystemUnderLoad(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		dev := h.RAM(1<<20, 512)
		h.Must(h.Target.AddSubsystem(subsystems.Config{
			NQN: OtherSub, AllowAnyHost: true,
			Namespaces: []namespaces.Config{{NSID: 1, Device: dev}},
		}))
		other := h.Dial(v, func(o *host.Options) { o.SubNQN = OtherSub })
		oq := h.Open(other, 1, 16)
		err := underLoad(t, h, v, 1,
			func(*host.Controller) { h.Gone(h.Target.RemoveSubsystem(SubNQN, true)) })
		wantRetry(t, err)
		h.Must(hosttest.Flush(testutil.Context(t), oq, 1))
		_, err = host.Connect(testutil.Context(t), h.Transport(v), v.HostOptions())
		var ce *host.ConnectError
		testutil.True(t, errors.As(err, &ce) && ce.Status.Code() == nvme.ConnectInvalidParameters,
			"connect to a removed subsystem: %v", err)
	})
}

func TestRemoveNamespaceUnderLoad(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		err := underLoad(t, h, v, 1, func(c *host.Controller) {
			h.Gone(h.Target.RemoveNamespace(SubNQN, 1))
			h.Ping(c)
		})
		if st, ok := hosttest.StatusOf(err); !ok || st.Code() != nvme.InvalidField {
			t.Errorf("the queue ended with %v", err)
		}
	})
}

func TestResetUnderLoad(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(o *Options) { o.Reactors = 2 },
		func(t *testing.T, h *Env, v Variant) {
			for range 5 {
				err := underLoad(t, h, v, 1, func(c *host.Controller) {
					h.Must(c.Reset(context.Background()))
					h.Must(c.Enable(context.Background()))
				})
				wantRetry(t, err)
			}
		})
}

// TestMassReconnect: hundreds of hosts that connect at once, as after a restart of the target,
// succeed at their first attempt, each with an I/O queue.
func TestMassReconnect(t *testing.T) {
	t.Parallel()
	h := New(t, Options{})
	const hosts = 300
	ctx := testutil.Context(t)
	connect := func(i int) (func(), error) {
		o := Variants[0].HostOptions()
		o.HostNQN = fmt.Sprint("nqn.2026-11.io.nvmf-target:host", i)
		o.HostID, o.Timeout = [16]byte{1, byte(i >> 8), byte(i)}, testutil.Patience
		c, err := host.Connect(ctx, host.TCP{
			Addr:   h.Addr(nvme.TransportTCP),
			Source: netip.AddrFrom4([4]byte{127, 0, 2 + byte(i>>8), byte(i)}),
		}, o)
		if err != nil {
			return nil, err
		}
		q, err := c.OpenQueue(ctx, 1, 32)
		if err != nil {
			return c.Close, err
		}
		return func() { _ = q.Close(); c.Close() }, hosttest.Flush(ctx, q, 1)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for i := range hosts {
		wg.Go(func() {
			leave, err := connect(i)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			if leave != nil {
				t.Cleanup(leave)
			}
		})
	}
	wg.Wait()
	err := errors.Join(errs...)
	testutil.MustTrue(t, err == nil, "%v\n%s", err, h.Log)
	u := h.Server.Transport(nvme.TransportTCP).Usage()
	testutil.True(t, u.Connections == 2*hosts && u.Evicted == 0 && u.Refused == 0, "%+v", u)
}

func TestResetAndShutdown(t *testing.T) {
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		c := h.Dial(v)
		ctx := testutil.Context(t)
		for range 3 {
			q := h.Open(c, 1, 32)
			buf := h.Buffer(c, 4096)
			h.Must(hosttest.Write(ctx, q, 1, 0, 8, buf, 0))
			h.Must(c.Reset(ctx))
			testutil.Is(t, ended(q), host.ErrClosed, "queue after a reset")
			testutil.MustTrue(t, testutil.Err(c.OpenQueue(ctx, 1, 32)) != nil,
				"a queue was connected to a disabled controller")
			h.Must(q.Close())
			h.Must(c.Enable(ctx))
		}
		q := h.Open(c, 2, 32)
		h.Must(c.Shutdown(ctx))
		testutil.Is(t, ended(q), host.ErrClosed, "queue after a shutdown")
		c.Close()
		h.Until("no controller is left", func() bool { return len(h.Target.Controllers()) == 0 })
	})
}

// ended waits until a queue has ended, and returns its error.
func ended(q *host.Queue) error {
	var done [32]host.Completion
	for {
		if _, err := q.Poll(done[:]); err != nil {
			return err
		}
		_ = q.Wait(testutil.Patience) // the next poll returns its error
	}
}

func TestKeepAliveExpiry(t *testing.T) {
	t.Parallel()
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		t.Parallel() // it mostly waits
		c := h.Dial(v, func(o *host.Options) { o.KATO, o.NoKeepAlive = time.Minute, true })
		q := h.Open(c, 1, 32)
		testutil.Value(c.SetFeature(testutil.Context(t), nvme.FeatureKeepAliveTimer, 2001))(t)
		// With 3 s, a stalled machine would end it, too.
		alive := h.Dial(v, func(o *host.Options) {
			o.KATO = time.Duration(testutil.Rounds(60, 3)) * time.Second
		})
		testutil.Is(t, ended(q), host.ErrClosed, "I/O queue")
		testutil.Receive(t, "the admin queue ends", c.Done())
		h.Until("one controller is left", func() bool { return len(h.Target.Controllers()) == 1 })
		testutil.True(t, alive.Err() == nil, "a controller with keep alives has ended: %v",
			alive.Err())
	})
}

// repeat calls fn until it returns false or stop is called. stop waits for the last call.
func repeat(fn func() bool) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for fn() {
			select {
			case <-end:
				return
			default:
			}
		}
	}()
	return func() { close(end); <-ended }
}

// TestDisconnectDuringIO repeatedly drops connections with full queues, in the middle of writes.
// The target must free everything (the harness checks arenas, sessions and RDMA objects), and
// another host, on another reactor, must be unaffected: each block that it reads is from a single
// write.
func TestDisconnectDuringIO(t *testing.T) {
	t.Parallel()
	const block, most, window = 512, 128 << 10, 512 << 10
	blocks := make([]byte, 0, 31*most+256*block) // all bytes of a block are its number
	for len(blocks) < cap(blocks) {
		blocks = append(blocks, bytes.Repeat([]byte{byte(len(blocks) / block)}, block)...)
	}
	eachVariant(t, func(o *Options) { o.Reactors = 2; o.Memory = 16 },
		func(t *testing.T, h *Env, v Variant) {
			bystander := h.Dial(v,
				func(o *host.Options) { o.HostNQN, o.HostID = HostNQN2, [16]byte{9} })
			q := h.Open(bystander, 1, 16)
			buf, seen := h.Buffer(bystander, q.Depth()*32768), h.Buffer(bystander, window)
			look := func() bool {
				err := verify(q, 65536, buf, 1)
				if err == nil {
					err = pipeline(q, 1, func(op *host.Op, _ int) {
						op.Read(1, 0, window/block, seen)
					})
				}
				testutil.Equal(t, err, nil, "the bystander host")
				return err == nil && WantWholeBlocks(t, seen, block)
			}
			stop := repeat(look)
			for round := range testutil.Rounds(7, 25) {
				c := h.Dial(v)
				data := h.Buffer(c, 31*most)
				copy(data, blocks[round*31%256*block:])
				for qid := range 2 {
					q := h.Open(c, uint16(qid+1), 32)
					var op host.Op
					for i := range q.Depth() {
						size := []int{512, 4096, 65536, most}[(i+round)%4]
						// aligned to frames, and unaligned
						first := uint64((round*5 + i*96) % ((window - most) / block))
						if b := data[i*most:][:size]; i%2 == 0 {
							op.Write(1, first, uint32(size/block), b, 0)
						} else {
							op.Read(1, first, uint32(size/block), b)
						}
						testutil.Value(q.Submit(&op))(t)
					}
					var done [4]host.Completion
					for range round % 7 {
						testutil.Value(q.Poll(done[:]))(t)
					}
					if round%3 == 0 { // the admin connection first
						c.Close()
					}
					_ = q.Close()
					if round%3 == 0 {
						break
					}
				}
				c.Close()
			}
			stop()
			look()
			h.Until("one controller is left",
				func() bool { return len(h.Target.Controllers()) == 1 })
		})
}
