package e2e

import (
	"bytes"
	"testing"

	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestBrokenWrites drops connections in the middle of writes, over and over, while another host, on
// another reactor, reads what they are about: each block is from one write, and whole.
func TestBrokenWrites(t *testing.T) {
	const (
		rounds = 20
		size   = 256 << 10
		block  = 512
		window = 1 << 20
	)
	eachWay(t, func(o *options) { o.reactors = 2 }, func(t *testing.T, r *rig, w way) {
		reader := r.connect(w,
			func(o *host.Options) { o.HostNQN, o.HostID = hostNQN2, [16]byte{9} })
		q := r.open(reader, 1, 8)
		buf := r.buffer(reader, window)
		look := func() bool {
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
			return untorn(t, buf, block)
		}
		stop := over(look)
		for round := range rounds {
			c := r.connect(w)
			q := r.open(c, 1, 16)
			data := r.buffer(c, 15*size)
			var op host.Op
			for i := range 15 {
				b := data[i*size:][:size]
				for at := 0; at < size; at += block {
					copy(b[at:], bytes.Repeat([]byte{byte(round*31 + i*17 + at/block)}, block))
				}
				// in step with frames, and not
				first := (round*5 + i*96) % (window/block - size/block)
				op.Write(1, uint64(first), size/block, b, 0)
				if _, err := q.Submit(&op); err != nil {
					t.Fatal(err)
				}
			}
			var done [4]host.Completion
			for range round % 7 {
				if _, err := q.Poll(done[:]); err != nil {
					t.Fatal(err)
				}
			}
			_ = q.Close()
			c.Close()
		}
		stop()
		look()
	})
}

// untorn says that all bytes of each block are the same.
func untorn(t *testing.T, b []byte, block int) bool {
	for ; len(b) > 0; b = b[block:] {
		if n := bytes.Count(b[:block], b[:1]); n != block {
			t.Errorf("a torn block: %d of %d bytes are %#x", n, block, b[0])
			return false
		}
	}
	return true
}
