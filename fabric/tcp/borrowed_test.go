package tcp

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// In-capsule data that its device takes at once stays where it was received. A device that takes
// longer after all may keep it, even while more is received, and even if the list of ready requests
// fills up in the middle.
func TestBorrowedData(t *testing.T) {
	for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true}} {
		for _, ready := range []int{1, 2, MaxQueueDepth} {
			t.Run(fmt.Sprintf("digests %v, %d ready", p.HeaderDigest, ready),
				func(t *testing.T) { testBorrowedData(t, p, ready) })
		}
	}
}

func testBorrowedData(t *testing.T, p pdu.Params, ready int) {
	h := newManual(t, options{hold: true})
	h.g.ready = make([]*fabric.Request, 0, ready)
	h.d.Optimistic = true
	c := h.connect(p, 16)
	total := h.arena.Available()
	write := func(i, nsid int) []byte {
		sqe := rw(nvme.NVMWrite, uint16(i), i*4096, 4096, true)
		sqe.SetNSID(uint32(nsid))
		return c.capsule(&sqe, random(i, 4096))
	}
	h.send(write(0, holdNSID))
	h.send(append(write(1, 1), write(2, holdNSID)...))
	for i := range 4 {
		h.send(append(write(3+2*i, 1), write(4+2*i, 1)...))
	}
	if len(h.d.Held) != 2 || h.arena.Available() != total {
		t.Errorf("%d writes are held, %d bytes taken of the arena for them", len(h.d.Held),
			total-h.arena.Available())
	}
	handed := h.d.Held[1].Segs[0].B
	free := h.queue().HandOverBuffers(h.d.Held[1])
	testutil.MustTrue(t, free != nil, "the data cannot be handed over")
	h.d.Held[1].Status = nvme.InternalPathError
	h.d.Release()
	h.turn()
	if n, want := len(h.recv()), 11*(pdu.CapsuleRespSize+p.HeaderDigestSize()); n != want {
		t.Errorf("%d bytes of responses, want %d", n, want)
	}
	for i := range 11 {
		testutil.True(t, i == 2 || bytes.Equal(h.d.Region.Bytes()[i*4096:][:4096], random(i, 4096)),
			"write %d did not arrive", i)
	}
	testutil.True(t, bytes.Equal(handed, random(2, 4096)),
		"data that was handed over has been overwritten")
	free()
	h.close()
}

// There is more in-capsule data than memory for it, in one batch with reads that need some of it.
// Each gets its turn, and none gets memory promised to another.
func TestPromisedMemory(t *testing.T) {
	const ios = 150 // more than a batch
	for _, size := range []int{512, 4096, 16384} {
		h := newManual(t, options{cfg: Config{MaxDepth: 2 * ios}, hold: true, arena: 128 << 10})
		c := h.connect(pdu.Params{}, 2*ios)
		var all []byte
		for i := range ios {
			all = append(all, c.inCapsule(uint16(2*i), i*16384, size, i)...)
			all = append(all, c.request(nvme.NVMRead, uint16(2*i+1), 3<<20, 4096)...)
		}
		got := 0
		for len(all) > 0 {
			n := min(len(all), rxSize)
			h.send(all[:n])
			all = all[n:]
			got += len(h.recv())
		}
		want := ios * (2*pdu.CapsuleRespSize + pdu.DataSize + 4096)
		testutil.True(t, got == want, "%d bytes of answers, want %d", got, want)
		for i := range ios {
			testutil.True(t, bytes.Equal(h.d.Region.Bytes()[i*16384:][:size], random(i, size)),
				"write %d of %d bytes did not arrive", i, size)
		}
		testutil.Equal(t, h.g.cfg.Memory.Promised(), 0, "bytes are still promised")
		h.close()
	}
}

// The handler may use memory of the pool while it executes the first part of a batch. If that
// memory was promised to the rest, the host retries the rest.
func TestPromisedMemoryIsUsed(t *testing.T) {
	h := newManual(t, options{hold: true, arena: 128 << 10})
	h.g.ready = make([]*fabric.Request, 0, 1)
	c := h.connect(pdu.Params{}, 16)
	h.d.OnExecute = func([]*fabric.Request) {
		if len(h.taken) == 0 {
			h.taken, _ = h.arena.Alloc(nil, h.arena.Available())
		}
	}
	var all []byte
	for i := range 4 {
		sqe := rw(nvme.NVMWrite, uint16(i), i*4096, 4096, true)
		sqe.SetNSID(holdNSID)
		all = append(all, c.capsule(&sqe, random(i, 4096))...)
	}
	h.send(all)
	h.d.Release()
	h.turn()
	got := h.recv()
	for i, want := range []nvme.Status{
		nvme.Success, nvme.Success, nvme.CommandInterrupted, nvme.CommandInterrupted,
	} {
		for b := got; len(b) > 0; b = b[pdu.CapsuleRespSize:] {
			cqe := (*pdu.CapsuleResp)(b).CQE()
			testutil.True(t, int(cqe.CID()) != i || cqe.Status() == want, "command %d: %v, want %v",
				i, cqe.Status(), want)
		}
	}
	testutil.Equal(t, h.d.Written.Load(), 2, "writes")
	h.close()
}
