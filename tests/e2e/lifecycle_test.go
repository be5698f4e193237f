package e2e

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

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
	eachTransport(t, func(o *Options) { o.Reactors = 2 },
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
