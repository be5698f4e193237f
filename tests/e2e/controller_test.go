package e2e

import (
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

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
