package rdma

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Buffers that were handed over belong to the handler: the command is answered, its slot serves
// other commands, the queue ends, and the memory stays unchanged until it is freed. On iWARP it is
// staging memory. A receive slot cannot be handed over.
func TestHandOverBuffers(t *testing.T) {
	both(t, func(t *testing.T, o harnessOptions) {
		b, q := joined(t, o, ioParam(8))
		s := q.keyed(command(opHoldWrite, 1, 0, 8192), 0, 8192)
		q.send(&s, nil)
		testutil.Until(t, "held", func() bool { return b.h.Holding.Load() == 1 })
		var free func()
		var handed []byte
		b.on(func() {
			r := b.h.Held[0]
			b.h.Held = nil
			handed = r.Segs[0].B
			for i := range handed {
				handed[i] = 77
			}
			free = r.Queue.HandOverBuffers(r)
			testutil.True(t, free != nil && len(r.Segs) == 0, "the memory is still the request's")
			b.h.Complete(r, nvme.InternalPathError, 0)
		})
		if cqe, _, ok := q.response(); !ok || cqe.Status() != nvme.InternalPathError {
			t.Errorf("response %v %v", cqe.Status(), ok)
		}
		for i := range uint16(20) {
			testutil.Equal(t, q.do(q.keyed(command(opWrite, 2+i, 0, 8192), 0, 8192), nil),
				nvme.Success, "")
		}
		slot := command(opHoldWrite, 50, 0, 512)
		slot.SGL1().SetData(nvme.SGLDataBlock, nvme.SGLSubtypeOffset, 0, 512)
		q.send(&slot, make([]byte, 512))
		testutil.Until(t, "held", func() bool { return b.h.Holding.Load() == 1 })
		b.on(func() {
			if r := b.h.Held[0]; r.Queue.HandOverBuffers(r) != nil || len(r.Segs) != 1 {
				t.Error("a slot was given away")
			}
		})
		b.letGo()
		_, _, ok := q.response()
		testutil.True(t, ok, "no response")
		q.disconnect()
		testutil.Until(t, "the queue ends", func() bool { return b.tr.Usage().Connections == 0 })
		for i, v := range handed {
			if v != 77 {
				t.Errorf("byte %d of memory that was handed over was used by others", i)
				break
			}
		}
		b.on(free)
		b.idle()
	})
}
