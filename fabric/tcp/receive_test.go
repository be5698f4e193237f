package tcp

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// askForWrites sends one command for each of writes, and fills writes in. It returns the number of
// bytes of the later responses, including the responses to the flushes in answers.
func (h *manual) askForWrites(c *client, writes [][]byte, rng *rand.Rand) int {
	var all []byte
	for i := range writes {
		writes[i] = random(i+1, (1+rng.IntN(200))*blockSize)
		all = append(all, c.request(nvme.NVMWrite, uint16(i), i<<18, len(writes[i]))...)
	}
	h.send(all)
	return 2 * len(writes) * (pdu.CapsuleRespSize + c.P.HeaderDigestSize())
}

// answers takes the R2Ts and returns the data for them, shuffled, with a flush for each.
func (h *manual) answers(c *client, writes [][]byte, rng *rand.Rand) (stream []byte) {
	size := pdu.DataSize + c.P.HeaderDigestSize()
	r2ts := bytes.Clone(h.recv())
	testutil.MustTrue(h.tb, len(r2ts) == size*len(writes), "%d bytes of R2Ts, want %d of %d",
		len(r2ts), len(writes), size)
	sent := make([]int, len(writes))
	for left := rng.Perm(len(writes)); len(left) > 0; {
		k := rng.IntN(min(len(left), 1+rng.IntN(2)))
		i := left[k]
		r := (*pdu.Data)(r2ts[i*size:])
		n, flags := len(writes[i])-sent[i], pdu.LastPDU
		if rng.IntN(2) == 0 && n > blockSize {
			n, flags = (1+rng.IntN(n/4-1))*4, 0
		} else {
			left = append(left[:k], left[k+1:]...)
			stream = append(stream, c.request(nvme.NVMFlush, uint16(100+i), 0, 0)...)
		}
		stream = append(stream,
			c.H2CData(flags, r.CCCID(), r.TTAG(), sent[i], writes[i][sent[i]:sent[i]+n])...)
		sent[i] += n
	}
	return stream
}

func (h *manual) cutUp(b []byte, rng *rand.Rand) {
	for len(b) > 0 {
		n := min(len(b), 1+rng.IntN(1<<rng.IntN(19)))
		h.send(b[:n])
		b = b[n:]
	}
}

// A queue receives only its share of a large transfer in a poll, also if it is alone: others may
// have input meanwhile.
func TestTurnOfInput(t *testing.T) {
	const n = 1 << 20
	h, c := joined(t, options{}, pdu.Params{}, 4)
	busy := h.peer
	h.send(c.request(nvme.NVMWrite, 1, 0, n))
	r2t := h.recv()
	testutil.MustTrue(t, len(r2t) == pdu.DataSize, "got %x, want an R2T", r2t)
	tag := (*pdu.Data)(r2t).TTAG()
	h.connect(pdu.Params{}, 4)
	q := h.g.queues.At(0)
	r := q.grants.First()
	h.g.turnsUntil = h.loop.now + recent
	h.g.activate(q)
	all := c.H2CData(pdu.LastPDU, 1, tag, 0, random(1, n))
	sent, _ := sys.Send(busy, all, 0)
	if sent < turnInput+2*partialSize {
		t.Skipf("the socket takes no more than %d bytes", sent)
	}
	h.g.Poll(64)
	inTurns := int(r.placed)
	testutil.True(t, inTurns >= turnInput-2*pdu.DataSize && inTurns <= turnInput,
		"%d bytes in a turn beside another queue, want about %d", inTurns, turnInput)
	more, _ := sys.Send(busy, all[sent:], 0)
	h.loop.now += 2 * recent
	h.g.Poll(64)
	if alone, there := int(r.placed)-inTurns, sent+more-pdu.DataSize-
		inTurns; alone != min(max(there, 0), turnInput) {
		t.Errorf("%d bytes in a turn alone, %d were there", alone, there)
	}
	h.close(h.peer, busy)
}

// A host with a socket buffer smaller than its capsule sends the rest when the beginning is
// acknowledged. After a response the kernel delays acknowledgements unless it is told not to.
func TestUnfinishedCapsule(t *testing.T) {
	tg, c := served(t, options{}, pdu.Params{}, 4, nvme.CATTRNoFlowControl)
	quick := func() (v int, unfinished bool) {
		tg.do(func() {
			q := tg.g.queues.At(0)
			unfinished = q.unfinished()
			v, _ = unix.GetsockoptInt(q.fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK)
		})
		return v, unfinished
	}
	b := c.inCapsule(1, 0, 8192, 1)
	for _, cut := range []int{1, pdu.CapsuleCmdSize - 1, pdu.CapsuleCmdSize + 1, len(b) - 1} {
		c.send(b)
		c.status(1, nvme.Success)
		c.send(b[:cut])
		testutil.Until(t, "the beginning of a capsule", func() bool {
			_, unfinished := quick()
			return unfinished
		})
		if v, _ := quick(); v != 1 {
			t.Errorf("acknowledgements are held back when %d bytes of %d have arrived", cut, len(b))
		}
		c.send(b[cut:])
		c.status(1, nvme.Success)
	}
}

// TestUnfinishedGrant: the data of each of several R2Ts may arrive in part.
func TestUnfinishedGrant(t *testing.T) {
	h := newManual(t, options{})
	c, tags := h.grants(pdu.Params{})
	q, data := h.queue(), random(1, 16384)
	testutil.True(t, !q.acknowledged, "acknowledged before there is data")
	for i, tag := range tags {
		h.send(c.H2CData(0, uint16(i), tag, 0, data[:8192]))
		testutil.True(t, q.acknowledged, "the data of R2T %d is not acknowledged", i)
		h.send(c.H2CData(pdu.LastPDU, uint16(i), tag, 8192, data[8192:]))
		testutil.True(t, len(h.recv()) > 0 && !q.acknowledged, "no response to write %d", i)
	}
	h.close()
}

// A host without TCP_NODELAY sends a small piece when the one before it is acknowledged. No piece
// of a PDU, or of the data of an R2T, waits for a delayed acknowledgement. On a busy machine the
// kernel may send one before the reactor runs: then the write is repeated.
func TestPieces(t *testing.T) {
	if !testutil.OwnNetwork(t) {
		return
	}
	testutil.IP(t, "link set lo up")
	tg, c := served(t, options{}, pdu.Params{}, 4, nvme.CATTRNoFlowControl)
	testutil.Must(t, c.Conn.(*net.TCPConn).SetNoDelay(false))
	const n = 8192
	data := random(1, n)
	for name, write := range map[string]func(){
		"header and data of a capsule": func() {
			b := c.inCapsule(1, 0, n, 1)
			c.send(b[:pdu.CapsuleCmdSize])
			c.send(b[pdu.CapsuleCmdSize:])
		},
		"data of an R2T in two PDUs": func() {
			c.send(c.request(nvme.NVMWrite, 1, 0, n))
			tag := c.r2t(1, n)
			c.send(c.H2CData(0, 1, tag, 0, data[:n/2]))
			c.send(c.H2CData(pdu.LastPDU, 1, tag, n/2, data[n/2:]))
		},
	} {
		testutil.Until(t, name+" without a wait", func() bool {
			tg.do(func() { // without TCP_QUICKACK the kernel delays every acknowledgement
				fd := tg.g.queues.At(0).fd
				testutil.Check(t, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0))
			})
			before := delayedACKs(t)
			write()
			c.status(1, nvme.Success)
			return delayedACKs(t) == before
		})
	}
}

// delayedACKs returns the number of acknowledgements that this network namespace has delayed.
func delayedACKs(t *testing.T) int {
	t.Helper()
	lines := strings.Split(string(testutil.Value(os.ReadFile("/proc/net/netstat"))(t)), "\n")
	at := slices.Index(strings.Fields(lines[0]), "DelayedACKs")
	return testutil.Value(strconv.Atoi(strings.Fields(lines[1])[at]))(t)
}

// conversation is a whole session of a host as one byte stream. It needs no answer of the target:
// transfer tags are predictable while only one command is outstanding.
func conversation(p pdu.Params) []byte {
	c := &client{}
	r := pdu.ICReq(&p, 1)
	c.P = p
	out := bytes.Clone(r[:])
	c.P.HPDA = 0
	out = append(out, c.connectPDU(1, 16, 0)...)
	for i := range 3 {
		n := 512 << i
		out = append(out, c.inCapsule(uint16(i), 4096*i, n, i)...)
		out = append(out, c.request(nvme.NVMRead, uint16(i+4), 4096*i, n)...)
	}
	return out
}

// largeCapsule is a write with its data after the command in the same PDU. The data goes straight
// to its place.
func largeCapsule(p pdu.Params) []byte {
	c := &client{Wire: hosttest.Wire{P: p}}
	return c.inCapsule(3, 16384, directMin+512, 3)
}

func cut(tg *target, t *testing.T, b []byte, how string) {
	c := tg.dial(t)
	c.send(b)
	switch how {
	case "FIN":
		_ = c.Conn.(*net.TCPConn).CloseWrite()
	case "RST":
		_ = c.Conn.(*net.TCPConn).SetLinger(0)
	}
	if how == "FIN" {
		_, _ = io.Copy(io.Discard, c.Conn)
	}
	_ = c.Close()
}

// The stream ends at every byte.
func TestTruncation(t *testing.T) {
	tg := serve(t, options{})
	for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true}} {
		all := conversation(p)
		for n := range all {
			cut(tg, t, all[:n], []string{"FIN", "RST"}[n%2])
		}
	}
	testutil.Until(t, "all connections ended", func() bool { return tg.t.Usage().Connections == 0 })
	testutil.Equal(t, tg.free(), 16<<20, "bytes of the arena are free")
}

// FuzzStream feeds a stream to the target in one piece and in many, and compares its answers and
// effects. The first byte chooses digests and much data in a capsule. The others damage a good
// conversation and follow it.
func FuzzStream(f *testing.F) {
	f.Add([]byte{0}, uint64(1))
	f.Add([]byte{3, 10, 0, 255}, uint64(2))
	f.Add(append([]byte{4}, conversation(pdu.Params{})[1000:1400]...), uint64(3))
	f.Add(append([]byte{15}, largeCapsule(pdu.Params{HeaderDigest: true, DataDigest: true})...),
		uint64(4))
	h := newManual(f, options{})
	defer h.close()
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		if len(b) == 0 || len(b) > 64<<10 {
			return
		}
		p := pdu.Params{HeaderDigest: b[0]&1 != 0, DataDigest: b[0]&2 != 0}
		stream := conversation(p)
		if b[0]&8 != 0 {
			stream = append(stream, largeCapsule(p)...)
		}
		if b[0]&4 != 0 {
			stream = append(stream, b[1:]...)
		}
		for i := 1; i+2 < len(b) && i < 24; i += 3 {
			damage(stream, int(b[i])<<8|int(b[i+1]), b[i+2])
		}
		compare(t, h, h.open, stream, seed)
	})
}

// damage changes a byte of a conversation, but not of the Connect: if that fails, whether later
// commands exceed the depth of the queue depends on when responses have left.
func damage(stream []byte, at int, by byte) {
	const from, to = pdu.ICSize, pdu.ICSize + pdu.CapsuleCmdSize + nvme.ConnectDataSize +
		2*pdu.DigestSize
	if at %= len(stream) - (to - from); at >= from {
		at += to - from
	}
	stream[at] ^= by
}

// compare runs a stream against the target twice, with different cuts, after begin has opened a
// connection.
func compare(t *testing.T, h *manual, begin func(), stream []byte, seed uint64) {
	const disk = 64 << 10 // the part that conversations write to
	run := func(piece func() int) string {
		fillPattern(h.d.Region.Bytes()[:disk])
		executed, written := h.d.Executed.Load(), h.d.Written.Load()
		begin()
		var said []byte
		for b := stream; len(b) > 0; {
			n := min(piece(), len(b))
			h.send(b[:n])
			b = b[n:]
			said = append(said, h.recv()...)
		}
		h.hangUp()
		testutil.Equal(t, h.g.queues.Len(), 0, "connections are left")
		testutil.Equal(t, h.arena.Available(), len(h.arena.Region().Bytes()),
			"bytes of the arena are free")
		return fmt.Sprintf("%d executed, %d written, disk %x, said %d bytes %x",
			h.d.Executed.Load()-executed,
			h.d.Written.Load()-written, sha256.Sum256(h.d.Region.Bytes()[:disk]), len(said),
			sha256.Sum256(sorted(t, said)))
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	whole := run(func() int { return len(stream) })
	cut := run(func() int { return 1 + rnd.IntN(1<<rnd.IntN(12)) })
	testutil.True(t, whole == cut, "in one piece: %s\nin many:      %s", whole, cut)
}

// sorted lists the PDUs of the target, sorted and without the fields that may depend on the order
// of execution: commands of one batch may be executed in any order.
func sorted(t *testing.T, b []byte) []byte {
	var list []string
	for len(b) > 0 {
		testutil.MustTrue(t, len(b) >= pdu.HeaderSize && len(b) >= int((*pdu.Header)(b).PLEN()),
			"the target said half a PDU: %x", b)
		m := b[:(*pdu.Header)(b).PLEN()]
		b = b[len(m):]
		switch (*pdu.Header)(m).Type() {
		case pdu.TypeCapsuleResp:
			cqe := (*pdu.CapsuleResp)(m).CQE()
			list = append(list, fmt.Sprint(cqe.CID(), cqe.Status()))
		case pdu.TypeC2HData:
			list = append(list, string(m[:pdu.DataSize]))
		case pdu.TypeR2T:
			const ttag = 10 // depends on the free request
			list = append(list, string(m[:ttag]), string(m[ttag+2:]))
		default:
			list = append(list, string(m))
		}
	}
	slices.Sort(list)
	return []byte(strings.Join(list, ""))
}

// grants connects and sends three writes of 16 KiB; tags are the transfer tags of their R2Ts.
func (h *manual) grants(p pdu.Params) (c *client, tags [3]uint16) {
	c = h.connect(p, 8)
	for i := range tags {
		h.send(c.request(nvme.NVMWrite, uint16(i), i*16384, 16384))
		tags[i] = (*pdu.Data)(h.recv()).TTAG()
	}
	return c, tags
}

// answersTo builds the H2CData for grants: the writes are served in turns, in pieces of the given
// sizes.
func answersTo(c *client, tags [3]uint16, sizes []byte) (stream []byte) {
	var at [3]int
	for i := 0; at != [3]int{16384, 16384, 16384}; i++ {
		w := i % 3
		n := 5000
		if i < len(sizes) {
			n = 1 + int(sizes[i])*int(sizes[i])
		}
		if n = min(n, 16384-at[w]); n == 0 {
			continue
		}
		flags := pdu.Flags(0)
		if at[w]+n == 16384 {
			flags = pdu.LastPDU
		}
		stream = append(stream,
			c.H2CData(flags, uint16(w), tags[w], at[w], random(w, 16384)[at[w]:at[w]+n])...)
		at[w] += n
	}
	return stream
}

// FuzzData is FuzzStream for the data of three R2Ts.
func FuzzData(f *testing.F) {
	f.Add([]byte{0}, []byte{}, uint64(1))
	f.Add([]byte{3}, []byte{0, 1, 2, 60, 70, 0, 0, 128}, uint64(2))
	f.Add([]byte{1, 0, 20, 1}, []byte{1, 2, 3}, uint64(3))
	h := newManual(f, options{})
	defer h.close()
	f.Fuzz(func(t *testing.T, b, sizes []byte, seed uint64) {
		if len(b) == 0 || len(sizes) > 500 {
			return
		}
		defer func(old testing.TB) { h.tb = old }(h.tb)
		h.tb = t
		p := pdu.Params{HeaderDigest: b[0]&1 != 0, DataDigest: b[0]&2 != 0}
		c, tags := h.grants(p)
		h.hangUp()
		stream := answersTo(c, tags, sizes)
		for i := 1; i+2 < len(b) && i < 24; i += 3 {
			stream[(int(b[i])<<8|int(b[i+1]))%len(stream)] ^= b[i+2]
		}
		compare(t, h, func() { h.grants(p) }, stream, seed)
	})
}

// The stream ends at every byte of a H2CData and of a TermReq.
func TestTruncatedData(t *testing.T) {
	for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true}} {
		h := newManual(t, options{})
		c, tags := h.grants(p)
		h.hangUp()
		for _, b := range [][]byte{
			c.H2CData(0, 0, tags[0], 0, random(0, 700)),
			pdu.AppendTermReq(nil, pdu.TypeH2CTermReq, sequence, random(0, 128)),
		} {
			for n := range b {
				h.grants(p)
				h.send(b[:n])
				h.hangUp()
				testutil.MustEqual(t, h.arena.Available(), len(h.arena.Region().Bytes()),
					"%d of %d bytes: bytes of the arena are free", n, len(b))
			}
		}
		testutil.Equal(t, h.d.Written.Load(), 0, "an incomplete write was executed")
		h.close()
	}
}

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
	testutil.True(t, len(h.d.Held) == 2 && h.arena.Available() == total,
		"%d writes are held, %d bytes taken of the arena for them", len(h.d.Held),
		total-h.arena.Available())
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
