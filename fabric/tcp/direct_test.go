package tcp

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// A host may answer its R2Ts in any order, in pieces of any size, with flushes in between, and with
// the stream cut anywhere: data goes to the right place, with and without zero copy. Most streams
// also have commands with large in-capsule data among others with small data, and refused ones.
func TestDirectData(t *testing.T) {
	for seed := range uint64(testutil.Rounds(60, 240)) {
		rng := rand.New(rand.NewPCG(seed, 8))
		p := pdu.Params{HeaderDigest: seed&1 != 0, DataDigest: seed&2 != 0}
		h := newManual(t, options{cfg: Config{InCapsuleSize: 256 << 10}, arena: 8 << 20})
		h.d.ZeroCopyWrites = seed&4 != 0
		c := h.connect(p, 64)
		answered, inCapsule := make([][]byte, 4), make([][]byte, 12)
		if seed%3 == 0 {
			inCapsule = nil
		}
		want := h.askForWrites(c, answered, rng)
		streams := [][]byte{h.answers(c, answered, rng), nil}
		for i := range inCapsule {
			n := (1 + rng.IntN(8)) * blockSize
			if i%4 != 0 {
				n = directMin + rng.IntN(100)*blockSize
			}
			off, data := (4+i)<<18, random(100+i, n)
			if inCapsule[i] = data; i%5 == 1 {
				off, inCapsule[i] = diskSize-blockSize, nil // refused
			}
			sqe := rw(nvme.NVMWrite, uint16(200+i), off, n, true)
			streams[1] = append(streams[1], c.Capsule(&sqe, data)...)
			want += pdu.CapsuleRespSize + p.HeaderDigestSize()
		}
		h.cutUp(merged(streams, rng), rng)
		testutil.MustEqual(t, len(h.recv()), want, "seed %d: bytes of answers", seed)
		for i, data := range append(answered, inCapsule...) {
			if off := i << 18; !bytes.Equal(h.d.Region.Bytes()[off:off+len(data)], data) {
				t.Fatalf("seed %d: write %d did not arrive", seed, i)
			}
		}
		testutil.MustEqual(t, h.g.cfg.Memory.Promised(), 0,
			"seed %d bytes are still promised", seed)
		h.close()
	}
}

func merged(streams [][]byte, rng *rand.Rand) (all []byte) {
	all = make([]byte, 0, len(streams[0])+len(streams[1]))
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

// While large writes follow each other, only data of the first is received into the receive buffer.
func TestDirectDataIsNotCopied(t *testing.T) {
	const n, writes = 128 << 10, 8
	for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true}} {
		h := newManual(t, options{cfg: Config{InCapsuleSize: n}})
		h.d.ZeroCopyWrites = true
		c := h.connect(p, 64)
		write := func(i int) []byte { return c.inCapsule(uint16(i), i*n, n, i) }
		h.send(write(0))
		var all []byte
		for i := 1; i < writes; i++ {
			all = append(all, write(i)...)
		}
		mark := bytes.Repeat([]byte{0xA5}, rxSize)
		copy(h.g.rx, mark)
		h.send(all)
		used := len(bytes.TrimRight(h.g.rx, "\xA5"))
		testutil.True(t, used <= pdu.CapsuleCmdSize+2*pdu.DigestSize,
			"%v: %d bytes of the buffer were used", p, used)
		testutil.Equal(t, h.d.Written.Load(), writes, "writes")
		for i := range writes {
			testutil.True(t, bytes.Equal(h.d.Region.Bytes()[i*n:][:n], random(i, n)),
				"write %d did not arrive", i)
		}
		h.close()
	}
}

// Damaged data costs only its command, and its zero copy ends.
func TestDamagedDirectData(t *testing.T) {
	const n = 64 << 10
	for _, zeroCopy := range []bool{false, true} {
		h := newManual(t, options{cfg: Config{InCapsuleSize: n}})
		h.d.ZeroCopyWrites = zeroCopy
		c := h.connect(pdu.Params{DataDigest: true}, 8)
		for i := range 3 {
			b := c.inCapsule(uint16(i), i*n, n, i)
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
		testutil.Equal(t, h.d.Written.Load(), 2, "writes")
		h.close()
	}
}

// The connection ends in the middle of direct data, with zero copy or in memory of the pool.
func TestDirectDataEnds(t *testing.T) {
	const n = 64 << 10
	for _, zeroCopy := range []bool{false, true} {
		h := newManual(t, options{cfg: Config{InCapsuleSize: n}})
		h.d.ZeroCopyWrites = zeroCopy
		c := h.connect(pdu.Params{}, 8)
		h.send(c.inCapsule(1, 0, n, 1)[:n/2])
		taken := len(h.arena.Region().Bytes()) - h.arena.Available()
		testutil.True(t, (taken == n) != zeroCopy, "%d bytes of the arena are taken", taken)
		h.hangUp()
		testutil.True(t, h.arena.Available() == len(h.arena.Region().Bytes()) &&
			h.d.Abandoned.Load() == 1 && h.d.Written.Load() == 0,
			"%d bytes are free, %d abandoned, %d written", h.arena.Available(),
			h.d.Abandoned.Load(), h.d.Written.Load())
		h.close()
	}
}

// Large in-capsule data leaves the reserve to small data and waits for memory in order of arrival.
func TestMemoryOfDirectData(t *testing.T) {
	const n = 256 << 10
	h, c := joined(t, options{cfg: Config{InCapsuleSize: n}, hold: true}, pdu.Params{}, 64)
	large := h.peer
	write := func(i, nsid, n int) []byte {
		sqe := rw(nvme.NVMWrite, uint16(i), 0, n, true)
		sqe.SetNSID(uint32(nsid))
		return c.Capsule(&sqe, random(i, n))
	}
	fit := h.g.cfg.Memory.Available() / n
	for i := range fit + 1 {
		h.send(write(i, holdNSID, n))
	}
	q := h.g.queues.At(0)
	testutil.MustTrue(t, len(h.d.Held) == fit && q.stalled() && h.g.stalled == 1,
		"%d commands are executing, want %d; stalled: %v", len(h.d.Held), fit, q.stalled())
	h.connect(pdu.Params{}, 8)
	small := h.peer
	h.send(write(0, 1, 4096))
	testutil.MustEqual(t, len(h.recv()), pdu.CapsuleRespSize,
		"a small write beside them bytes of answers")
	const wanted = 2 << 20
	h.send(c.request(nvme.NVMRead, 1, 0, wanted))
	testutil.MustEqual(t, len(h.recv()), 0, "the read does not wait")
	releaseOne := func() {
		more := h.d.Held[1:]
		h.d.Held = h.d.Held[:1]
		h.d.Release()
		h.d.Held = more
		h.turn()
	}
	releaseOne()
	testutil.True(t, !q.stalled() && len(h.d.Held) == fit,
		"the write that came before the read has no memory; %d are executing", len(h.d.Held))
	h.peer = large
	h.send(write(fit+1, holdNSID, n))
	releaseOne() // enough for the write, but not for the read
	testutil.True(t, q.stalled(), "the write went before the read")
	h.peer = small
	h.d.Release()
	h.turn()
	got := len(h.recv())
	testutil.True(t, got >= wanted && !q.stalled() && len(h.d.Held) == 1,
		"%d bytes were read; stalled: %v; %d writes are executing", got, q.stalled(), len(h.d.Held))
	h.d.Release()
	h.turn()
	h.close(h.peer, large)
}

// Large in-capsule data may be followed by requested data that has all the other memory. The
// in-capsule data may then use the reserve.
func TestReserveForDirectData(t *testing.T) {
	const n = 256 << 10
	h, c := joined(t, options{cfg: Config{InCapsuleSize: n}}, pdu.Params{}, 64)
	var want int64
	for ; h.g.cfg.Memory.Available() >= n; want++ {
		h.send(c.request(nvme.NVMWrite, uint16(want), int(want)*n, n))
	}
	r2ts := bytes.Clone(h.recv())
	asked := h.peer
	h.connect(pdu.Params{}, 8)
	h.send(c.inCapsule(100, diskSize-n, n, 1))
	testutil.True(t, h.g.queues.At(1).stalled(),
		"large data has the reserve although nothing was asked for on its connection")
	h.hangUp()
	h.peer = asked
	h.send(c.inCapsule(100, diskSize-n, n, 100))
	testutil.MustTrue(t, h.d.Written.Load() == 1 && h.g.stalled == 0,
		"%d writes, %d queues are stalled", h.d.Written.Load(), h.g.stalled)
	for ; len(r2ts) > 0; r2ts = r2ts[pdu.DataSize:] {
		r := (*pdu.Data)(r2ts)
		h.send(c.H2CData(pdu.LastPDU, r.CCCID(), r.TTAG(), 0, random(int(r.CCCID()), n)))
	}
	testutil.True(t, h.d.Written.Load() == want+1 && bytes.Equal(h.d.Region.Bytes()[diskSize-n:],
		random(100, n)), "%d writes, want %d", h.d.Written.Load(), want+1)
	h.close()
}

// Large in-capsule data blocks the answers to R2Ts. They may leave after the data has begun to
// wait; then it may use the reserve, too.
func TestReserveAfterR2T(t *testing.T) {
	const n = 256 << 10
	for _, waiting := range []bool{false, true} {
		h, c := joined(t, options{cfg: Config{InCapsuleSize: n}}, pdu.Params{}, 64)
		if waiting { // the R2Ts wait for memory when the data comes
			h.exhaust()
		}
		fit := h.g.cfg.Memory.Max(nil) / n
		var all []byte
		for i := range fit {
			all = append(all, c.request(nvme.NVMWrite, uint16(i), i*n, n)...)
		}
		h.send(append(all, c.inCapsule(100, diskSize-n, n, 100)...))
		if waiting {
			h.giveBack()
			h.turn()
		}
		r2ts := bytes.Clone(h.recv())[:fit*pdu.DataSize]
		testutil.True(t, h.g.stalled == 0 && h.d.Written.Load() == 1,
			"waiting %v: %d queues are stalled, %d writes", waiting, h.g.stalled,
			h.d.Written.Load())
		for ; len(r2ts) > 0; r2ts = r2ts[pdu.DataSize:] {
			r := (*pdu.Data)(r2ts)
			h.send(c.H2CData(pdu.LastPDU, r.CCCID(), r.TTAG(), 0, random(int(r.CCCID()), n)))
		}
		got := h.d.Written.Load()
		testutil.True(t, got == int64(fit+1), "waiting %v: %d writes, want %d", waiting, got, fit+1)
		h.close()
	}
}
