package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

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

// TestDisconnectDuringIO repeatedly drops connections with full queues. The target must free
// everything (the harness checks arenas, sessions and RDMA objects), and another host must be
// unaffected.
func TestDisconnectDuringIO(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(o *Options) { o.Reactors = 2; o.Memory = 16 },
		func(t *testing.T, h *Env, v Variant) {
			bystander := h.Dial(v,
				func(o *host.Options) { o.HostNQN, o.HostID = HostNQN2, [16]byte{9} })
			q := h.Open(bystander, 1, 16)
			buf := h.Buffer(bystander, q.Depth()*32768)
			stop := repeat(func() bool {
				err := verify(q, 65536, buf, 2)
				testutil.Equal(t, err, nil, "the bystander host")
				return err == nil
			})
			for round := range testutil.Rounds(6, 25) {
				c := h.Dial(v)
				data := h.Buffer(c, 31*131072)
				for qid := range 2 {
					q := h.Open(c, uint16(qid+1), 32)
					var op host.Op
					for i := range q.Depth() {
						size := []int{512, 4096, 65536, 131072}[(i+round)%4]
						if b := data[i*131072:][:size]; (i+qid)%2 == 0 {
							op.Write(1, uint64(i*256), uint32(size/512), b, 0)
						} else {
							op.Read(1, uint64(i*256), uint32(size/512), b)
						}
						testutil.Value(q.Submit(&op))(t)
					}
					var done [4]host.Completion
					for range round % 5 {
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
			h.Until("one controller is left",
				func() bool { return len(h.Target.Controllers()) == 1 })
		})
}

// TestConnectCycles: four hosts connect and disconnect repeatedly.
func TestConnectCycles(t *testing.T) {
	t.Parallel()
	eachTransport(t, nil, func(t *testing.T, h *Env, v Variant) {
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for range 15 {
					err := cycle(testutil.Context(t), h.Transport(v), v.HostOptions(), uint8(i))
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

// cycle connects with three I/O queues, uses them and disconnects.
func cycle(ctx context.Context, t host.Transport, o host.Options, id uint8) error {
	o.HostNQN, o.HostID = fmt.Sprintf("nqn.2026-11.io.nvmf-target:host%d", id), [16]byte{100 + id}
	c, err := host.Connect(ctx, t, o)
	if err != nil {
		return err
	}
	defer c.Close()
	for qid := uint16(1); qid <= 3; qid++ {
		q, err := c.OpenQueue(ctx, qid, 32)
		if err != nil {
			return err
		}
		defer q.Close()
		if err := hosttest.Flush(ctx, q, 1); err != nil {
			return err
		}
	}
	return nil
}
