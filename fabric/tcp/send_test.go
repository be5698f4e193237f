package tcp

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// A queue that is not the only one sends no more than its share in one turn, and goes on in the next.
func TestTurnOfOutput(t *testing.T) {
	for _, reads := range []struct{ size, count, most int }{
		{4 << 10, 127, turnVectors / 2},
		{128 << 10, 8, (turnBytes + 128<<10 - 1) / (128 << 10)},
	} {
		t.Run(fmt.Sprint(reads.size), func(t *testing.T) {
			h := newHand(t, options{})
			c := h.connect(pdu.Params{}, 128)
			greedy := h.peer
			h.connect(pdu.Params{}, 4)
			q := h.g.queues[0]
			_ = unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20)
			h.g.heat(h.g.queues[1])
			h.g.heat(q)
			q.drained = false
			var batch []byte
			for i := range reads.count {
				sqe := rw(nvme.NVMRead, uint16(i), i*reads.size, reads.size, false)
				batch = append(batch, c.capsule(&sqe, nil)...)
			}
			if n, err := sys.Send(greedy, batch, 0); n != len(batch) || err != 0 {
				t.Fatal(n, err)
			}
			before := q.sentBytes
			h.g.Poll(64)
			sent := int(q.sentBytes - before)
			if q.blocked {
				t.Skipf("the socket takes no more than %d bytes", sent)
			}
			each := pdu.DataSize + reads.size + pdu.CapsuleRespSize
			if sent == 0 || sent > reads.most*each {
				t.Errorf("%d bytes in a turn beside another queue, want at most %d reads of %d", sent, reads.most, each)
			}
			h.g.cool(slices.Index(h.g.hot, h.g.queues[1]))
			h.hangUp()
			all := sent
			for h.peer = greedy; len(h.recv()) > 0; all = int(q.sentBytes - before) {
				h.turn()
			}
			if all != reads.count*each {
				t.Errorf("%d bytes in all, want %d", all, reads.count*each)
			}
			h.close()
		})
	}
}
