package e2e

import (
	"testing"

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

// TestDisconnectDuringIO repeatedly drops connections with full queues, in the middle of writes.
// The target must free everything (the harness checks arenas, sessions and RDMA objects), and
// another host, on another reactor, must be unaffected: each block that it reads is from a single
// write.
func TestDisconnectDuringIO(t *testing.T) {
	t.Parallel()
	const block, most, window = 512, 128 << 10, 512 << 10
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
				for at := 0; at < len(data); at += block {
					fillBytes(data[at:at+block], byte(round*31+at/block))
				}
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
