package e2e

import (
	"bytes"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestBrokenWrites repeatedly drops connections in the middle of writes, while another host, on
// another reactor, reads the same blocks: each block is from a single write.
func TestBrokenWrites(t *testing.T) {
	t.Parallel()
	const (
		size   = 128 << 10
		block  = 512
		window = 512 << 10
	)
	eachVariant(t, func(o *Options) { o.Reactors = 2 }, func(t *testing.T, h *Env, v Variant) {
		reader := h.Dial(v, func(o *host.Options) { o.HostNQN, o.HostID = HostNQN2, [16]byte{9} })
		q := h.Open(reader, 1, 8)
		buf := h.Buffer(reader, window)
		check := func() bool {
			var done [8]host.Completion
			var op host.Op
			op.Read(1, 0, window/block, buf)
			if _, err := q.Submit(&op); err != nil {
				t.Error(err)
				return false
			}
			for q.Outstanding() > 0 {
				if err := collect(q, done[:]); err != nil {
					t.Error(err)
					return false
				}
			}
			return WantWholeBlocks(t, buf, block)
		}
		stop := repeat(check)
		for round := range testutil.Rounds(7, 20) {
			c := h.Dial(v)
			q := h.Open(c, 1, 16)
			data := h.Buffer(c, 15*size)
			var op host.Op
			for i := range 15 {
				b := data[i*size:][:size]
				for at := 0; at < size; at += block {
					copy(b[at:], bytes.Repeat([]byte{byte(round*31 + i*17 + at/block)}, block))
				}
				// aligned to frames, and unaligned
				first := (round*5 + i*96) % (window/block - size/block)
				op.Write(1, uint64(first), size/block, b, 0)
				testutil.Value(q.Submit(&op))(t)
			}
			var done [4]host.Completion
			for range round % 7 {
				testutil.Value(q.Poll(done[:]))(t)
			}
			_ = q.Close()
			c.Close()
		}
		stop()
		check()
	})
}
