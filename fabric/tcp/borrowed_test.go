package tcp

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
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
		return c.Capsule(&sqe, random(i, 4096))
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
		all = append(all, c.Capsule(&sqe, random(i, 4096))...)
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

// Memory that was handed over no longer belongs to the queue: the command is answered, its request
// serves others, the queue ends, and none of that touches the memory until the device frees it.
func TestHandOverBuffers(t *testing.T) {
	h, c := joined(t, options{hold: true}, pdu.Params{}, 8)
	total := h.arena.Available()
	for i, capsule := range []bool{true, false} {
		op := []nvme.Opcode{nvme.NVMWrite, nvme.NVMRead}[i]
		sqe := rw(op, uint16(i), 0, 4096, capsule)
		sqe.SetNSID(holdNSID)
		h.send(c.Capsule(&sqe, random(0, 4096*(1-i))))
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

// connect opens a connection and makes its queue ready for commands.
func (h *manual) connect(p pdu.Params, depth int) *client {
	h.tb.Helper()
	c := &client{h.tb, hosttest.Wire{P: p}}
	h.open()
	r := pdu.ICReq(&p, 1)
	h.send(r[:])
	h.send(c.connectPDU(1, depth, 0))
	want := pdu.ICSize + pdu.CapsuleRespSize + p.HeaderDigestSize()
	testutil.MustEqual(h.tb, len(h.recv()), want, "bytes of answers")
	return c
}

// roundTrips returns a function that makes the target serve depth commands in one batch, and the
// size of the expected answer in bytes.
func (h *manual) roundTrips(c *client, op nvme.Opcode, n, depth int, inCapsule bool) (func(), int) {
	var batch []byte
	answer := pdu.CapsuleRespSize + c.P.HeaderDigestSize()
	for i := range depth {
		sqe := rw(op, uint16(i), i*n, n, inCapsule)
		var data []byte
		if inCapsule {
			data = random(i, n)
		}
		batch = append(batch, c.Capsule(&sqe, data)...)
	}
	if op == nvme.NVMRead {
		answer += c.P.PDO(pdu.DataSize, c.P.HPDA) + n + c.P.DataDigestSize()
	}
	if op == nvme.NVMRead || inCapsule {
		return func() { h.send(batch) }, answer * depth
	}
	// Writes by R2T take their tags from the R2Ts. Answering them allocates nothing either.
	r2t := pdu.DataSize + c.P.HeaderDigestSize()
	tmpl := c.H2CData(pdu.LastPDU, 0, 0, 0, random(1, n))
	return func() {
		h.send(batch)
		got := h.recv()
		testutil.MustEqual(h.tb, len(got), r2t*depth, "bytes of R2Ts")
		for i := range depth {
			r := (*pdu.Data)(got[i*r2t:])
			(*pdu.Data)(tmpl).SetH2C(&c.P, pdu.LastPDU, r.CCCID(), r.TTAG(), 0, uint32(n))
			c.fixHeaderDigest(tmpl, pdu.DataSize)
			h.send(tmpl)
		}
	}, answer * depth
}

// TestNoAllocations: commands allocate nothing: reads with and without zero copy, writes with small
// and large data in their capsules and by R2T, with and without digests.
func TestNoAllocations(t *testing.T) {
	for _, zeroCopy := range []bool{false, true} {
		for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true}} {
			h, c := joined(t, options{zeroCopy: zeroCopy, arena: 32 << 20}, p, 32)
			for _, w := range []struct {
				name string
				op   nvme.Opcode
				n    int
				ic   bool
			}{
				{"4K read", nvme.NVMRead, 4096, false},
				{"128K read", nvme.NVMRead, 131072, false},
				{"4K write", nvme.NVMWrite, 4096, true},
				{"128K write", nvme.NVMWrite, 131072, false},
				{"128K write in the capsule", nvme.NVMWrite, 131072, true},
			} {
				depth := 16
				trip, answer := h.roundTrips(c, w.op, w.n, depth, w.ic)
				run := func() {
					trip()
					if got := len(h.recv()); got != answer {
						t.Fatalf("%s: %d bytes of answers, want %d", w.name, got, answer)
					}
				}
				run() // the backing arrays of segments grow to their size
				if a := testutil.AllocsPerRun(20, run); a != 0 {
					t.Errorf("%s, zero copy %v, digests %v: %v allocations per %d commands", w.name,
						zeroCopy, p.DataDigest, a, depth)
				}
			}
			h.close()
		}
	}
}

func benchmark(b *testing.B, p pdu.Params, op nvme.Opcode, n, depth int, ic bool) {
	h := newManual(b, options{zeroCopy: true, arena: 64 << 20})
	c := h.connect(p, depth+1)
	trip, answer := h.roundTrips(c, op, n, depth, ic)
	for b.Loop() {
		trip()
		testutil.MustEqual(b, len(h.recv()), answer, "bytes of answers")
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*depth), "ns/cmd")
	h.close()
}

func BenchmarkRead4K(b *testing.B)  { benchmark(b, pdu.Params{}, nvme.NVMRead, 4096, 32, false) }
func BenchmarkWrite4K(b *testing.B) { benchmark(b, pdu.Params{}, nvme.NVMWrite, 4096, 16, true) }
func BenchmarkRead4KDigests(b *testing.B) {
	benchmark(b, pdu.Params{HeaderDigest: true, DataDigest: true}, nvme.NVMRead, 4096, 32, false)
}
