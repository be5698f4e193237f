package tcp

import (
	"bytes"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// In-capsule data that its device takes at once stays where it was received. A device that does not, after all, has it for as long as it
// likes, whatever is received meanwhile, and whoever else keeps it.
func TestDataInPassing(t *testing.T) {
	for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true}} {
		h := newHand(t, options{hold: true})
		h.d.late = true
		c := h.connect(p, 16)
		total := h.arena.Available()
		write := func(i, nsid int) []byte {
			sqe := rw(nvme.NVMWrite, uint16(i), i*4096, 4096, true)
			sqe.SetNSID(uint32(nsid))
			return c.capsule(&sqe, random(i, 4096))
		}
		h.send(bytes.Join([][]byte{write(0, holdNSID), write(1, 1), write(2, holdNSID)}, nil))
		for i := range 8 {
			h.send(write(3+i, 1))
		}
		if len(h.d.held) != 2 || h.arena.Available() != total {
			t.Errorf("%d writes are held, %d bytes taken of the arena for them", len(h.d.held), total-h.arena.Available())
		}
		kept := h.d.held[1].Segs[0].B
		free := h.queue().Keep(h.d.held[1])
		if free == nil {
			t.Fatal("a device may not keep the data")
		}
		h.d.held[1].Status = nvme.InternalPathError
		h.d.release()
		h.turn()
		if n, want := len(h.recv()), 11*(pdu.CapsuleRespSize+p.HeaderDigestSize()); n != want {
			t.Errorf("%d bytes of responses, want %d", n, want)
		}
		for i := range 11 {
			if want := random(i, 4096); i != 2 && !bytes.Equal(h.d.data.Bytes()[i*4096:][:4096], want) {
				t.Errorf("write %d did not arrive", i)
			}
		}
		if !bytes.Equal(kept, random(2, 4096)) {
			t.Error("what a device keeps was overwritten")
		}
		free()
		h.close()
	}
}
