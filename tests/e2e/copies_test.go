package e2e

import (
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

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
