package tcp

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Memory that was handed over no longer belongs to the queue: the command is answered, its request
// serves others, the queue ends, and none of that touches the memory until the device frees it.
func TestHandOverBuffers(t *testing.T) {
	h, c := joined(t, options{hold: true}, pdu.Params{}, 8)
	total := h.arena.Available()
	for i, capsule := range []bool{true, false} {
		op := []nvme.Opcode{nvme.NVMWrite, nvme.NVMRead}[i]
		sqe := rw(op, uint16(i), 0, 4096, capsule)
		sqe.SetNSID(holdNSID)
		h.send(c.capsule(&sqe, random(0, 4096*(1-i))))
	}
	testutil.MustEqual(t, len(h.d.Held), 2, "commands are executing")
	var handed [][]byte
	var frees []func()
	for i, r := range h.d.Held {
		b := r.Segs[0].B
		for j := range b {
			b[j] = byte(100 + i)
		}
		handed = append(handed, b)
		frees = append(frees, h.queue().HandOverBuffers(r))
		testutil.MustTrue(t, len(r.Segs) == 0 && frees[i] != nil,
			"the memory is still the request's")
		r.Status = nvme.InternalPathError
	}
	h.d.Release()
	h.turn()
	testutil.Equal(t, len(h.recv()), 2*pdu.CapsuleRespSize, "bytes arrived, want two responses")
	for i := range 20 { // on the same requests
		h.send(c.request(nvme.NVMRead, uint16(i), 0, 4096))
		h.recv()
	}
	h.hangUp()
	h.turn()
	testutil.True(t, h.g.queues.Len() <= 0, "the queue waits for the device")
	testutil.Equal(t, total-h.arena.Available(), 8192, "bytes are still in use")
	for i, b := range handed {
		testutil.True(t, b[0] == byte(100+i) && b[4095] == byte(100+i),
			"memory %d was used although the device has it", i)
		frees[i]()
	}
	testutil.Equal(t, h.arena.Available(), total, "memory is lost")
	h.close()
}
