package tcp

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// Commands with much data in their capsules among others with little, refused ones, flushes and the
// data of R2Ts, the stream cut anywhere: data gets where it belongs, whether the device has memory
// of its own for it or not.
func TestDataAhead(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 8))
		p := pdu.Params{HeaderDigest: seed&1 != 0, DataDigest: seed&2 != 0}
		h := newHand(t, options{cfg: Config{InCapsuleSize: 256 << 10}, arena: 8 << 20})
		h.d.writes = seed&4 != 0
		c := h.connect(p, 64)
		answered := make([][]byte, 3)
		want := h.askForWrites(c, answered, rng)
		streams := [][]byte{h.answers(c, answered, rng), nil}
		ahead := make([][]byte, 12)
		for i := range ahead {
			n := (1 + rng.IntN(8)) * blockSize
			if i%4 != 0 {
				n = aheadMin + rng.IntN(300)*blockSize
			}
			off := (4 + i) << 18
			if ahead[i] = random(100+i, n); i%5 == 1 {
				off, ahead[i] = diskSize-blockSize, nil // refused
			}
			sqe := rw(nvme.NVMWrite, uint16(200+i), off, n, true)
			streams[1] = append(streams[1], c.capsule(&sqe, random(100+i, n))...)
			want += pdu.CapsuleRespSize + p.HeaderDigestSize()
		}
		h.cutUp(merged(streams, rng), rng)
		if n := len(h.recv()); n != want {
			t.Fatalf("seed %d: %d bytes of answers, want %d", seed, n, want)
		}
		for i, data := range append(append(answered, nil), ahead...) {
			if off := i << 18; !bytes.Equal(h.d.data.Bytes()[off:off+len(data)], data) {
				t.Fatalf("seed %d: write %d did not arrive", seed, i)
			}
		}
		if h.g.ahead != 0 || h.g.promised != 0 {
			t.Fatalf("seed %d: %d commands are ahead, %d bytes promised", seed, h.g.ahead,
				h.g.promised)
		}
		h.close()
	}
}

// merged mixes two streams, PDU by PDU.
func merged(streams [][]byte, rng *rand.Rand) (all []byte) {
	for len(streams[0])+len(streams[1]) > 0 {
		s := &streams[rng.IntN(2)]
		if len(*s) == 0 {
			continue
		}
		n := (*pdu.Header)(*s).PLEN()
		all = append(all, (*s)[:n]...)
		*s = (*s)[n:]
	}
	return all
}

// While one large write follows another nothing of their data is received into the group's buffer
// but what comes before the first.
func TestDataAheadComesStraight(t *testing.T) {
	const n, writes = 128 << 10, 8
	for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true}} {
		h := newHand(t, options{cfg: Config{InCapsuleSize: n}})
		h.d.writes = true
		c := h.connect(p, 64)
		write := func(i int) []byte {
			sqe := rw(nvme.NVMWrite, uint16(i), i*n, n, true)
			return c.capsule(&sqe, random(i, n))
		}
		h.send(write(0))
		var all []byte
		for i := 1; i < writes; i++ {
			all = append(all, write(i)...)
		}
		mark := bytes.Repeat([]byte{0xA5}, rxSize)
		copy(h.g.rx, mark)
		h.send(all)
		if used := len(bytes.TrimRight(h.g.rx, "\xA5")); used > h.queue().untilData()+
			2*pdu.DigestSize {
			t.Errorf("%v: %d bytes of the buffer were used", p, used)
		}
		if n := h.d.written.Load(); n != writes {
			t.Errorf("%d writes", n)
		}
		for i := range writes {
			if !bytes.Equal(h.d.data.Bytes()[i*n:][:n], random(i, n)) {
				t.Errorf("write %d did not arrive", i)
			}
		}
		h.close()
	}
}

// Data that was damaged on the way costs its command only, and what a device lent for it goes back.
func TestDamagedDataAhead(t *testing.T) {
	const n = 64 << 10
	for _, lend := range []bool{false, true} {
		h := newHand(t, options{cfg: Config{InCapsuleSize: n}})
		h.d.writes = lend
		c := h.connect(pdu.Params{DataDigest: true}, 8)
		for i := range 3 {
			sqe := rw(nvme.NVMWrite, uint16(i), i*n, n, true)
			b := c.capsule(&sqe, random(i, n))
			if i == 1 {
				b[len(b)/2] ^= 1
			}
			h.send(b[:n/3])
			h.send(b[n/3:])
			want := nvme.Success
			if i == 1 {
				want = nvme.TransientTransportError
			}
			if cqe := (*pdu.CapsuleResp)(h.recv()).CQE(); cqe.CID() != uint16(i) ||
				cqe.Status() != want {
				t.Errorf("command %d: %v, want %v", cqe.CID(), cqe.Status(), want)
			}
		}
		if n := h.d.written.Load(); n != 2 {
			t.Errorf("%d writes", n)
		}
		h.close()
	}
}

// The host ends in the midst of data for which a device, or the arena, has given memory.
func TestDataAheadEnds(t *testing.T) {
	const n = 64 << 10
	for _, lend := range []bool{false, true} {
		h := newHand(t, options{cfg: Config{InCapsuleSize: n}})
		h.d.writes = lend
		c := h.connect(pdu.Params{}, 8)
		sqe := rw(nvme.NVMWrite, 1, 0, n, true)
		h.send(c.capsule(&sqe, random(1, n))[:n/2])
		if taken := len(h.arena.Region().Bytes()) - h.arena.Available(); (taken == n) == lend {
			t.Errorf("%d bytes of the arena are taken", taken)
		}
		h.hangUp()
		if h.arena.Available() != len(h.arena.Region().Bytes()) || h.g.ahead != 0 ||
			h.d.abandoned.Load() != 1 || h.d.written.Load() != 0 {
			t.Errorf("%d bytes are free, %d ahead, %d abandoned, %d written", h.arena.Available(),
				h.g.ahead, h.d.abandoned.Load(), h.d.written.Load())
		}
		h.close()
	}
}

// Commands with much data leave memory to those with little and to those that wait for theirs in
// turn, and go on when there is some: at least one at a time.
func TestMemoryOfDataAhead(t *testing.T) {
	const n = 256 << 10
	h := newHand(t, options{cfg: Config{InCapsuleSize: n}, hold: true})
	c := h.connect(pdu.Params{}, 64)
	large := h.peer
	write := func(i, nsid, n int) []byte {
		sqe := rw(nvme.NVMWrite, uint16(i), 0, n, true)
		sqe.SetNSID(uint32(nsid))
		return c.capsule(&sqe, random(i, n))
	}
	fit := h.g.cfg.Memory.Available() / n
	for i := range fit + 1 {
		h.send(write(i, holdNSID, n))
	}
	q := h.g.queues[0]
	if len(h.d.held) != fit || h.g.ahead != fit || !q.stalled {
		t.Fatalf("%d commands are executing, %d are ahead, want %d; stalled: %v", len(h.d.held),
			h.g.ahead, fit, q.stalled)
	}
	h.connect(pdu.Params{}, 8)
	h.send(write(0, 1, 4096))
	if got := len(h.recv()); got != pdu.CapsuleRespSize {
		t.Fatalf("a small write beside them: %d bytes of answers", got)
	}
	const wanted = 2 << 20
	sqe := rw(nvme.NVMRead, 1, 0, wanted, false)
	h.send(c.capsule(&sqe, nil))
	if h.g.waiting.head == nil {
		t.Fatal("the read does not wait")
	}
	more := h.d.held[1:]
	h.d.held = h.d.held[:1]
	h.d.release() // not enough for the read
	h.turn()
	if !q.stalled {
		t.Error("the write went before the read")
	}
	h.d.held = more
	h.d.release()
	h.turn()
	if got := len(h.recv()); got < wanted || q.stalled || len(h.d.held) != 1 {
		t.Errorf("%d bytes were read; stalled: %v; %d writes go on", got, q.stalled, len(h.d.held))
	}
	h.d.release()
	h.turn()
	h.hangUp()
	h.peer = large
	h.close()

	// The first one may have even the last of the memory.
	h = newHand(t, options{cfg: Config{InCapsuleSize: n}})
	h.g.cfg.Memory = mem.NewPool(h.arena, h.arena.Available())
	c = h.connect(pdu.Params{}, 8)
	h.send(write(0, 1, n))
	h.send(write(1, 1, n))
	if h.d.written.Load() != 2 {
		t.Errorf("%d writes", h.d.written.Load())
	}
	h.close()
}
