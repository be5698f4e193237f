package tcp

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/pdu"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// conversation is a whole session of a host as one byte stream. It needs no answer of the target: transfer tags are foreseeable
// as long as one command is outstanding at a time.
func conversation(p pdu.Params) []byte {
	c := &client{}
	var r pdu.ICReq
	r.Set(&p, 1)
	c.p = p
	out := bytes.Clone(r[:])
	c.p.HPDA = 0
	out = append(out, c.connectPDU(1, 16, 0)...)
	for i := range 3 {
		n := 512 << i
		sqe := rw(nvme.NVMWrite, uint16(i), 4096*i, n, true)
		out = append(out, c.capsule(&sqe, random(i, n))...)
		sqe = rw(nvme.NVMRead, uint16(i+4), 4096*i, n, false)
		out = append(out, c.capsule(&sqe, nil)...)
	}
	return out
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
		for n := 0; n < len(all); n++ {
			if n > 1400 && n%37 != 0 && testing.Short() {
				continue
			}
			cut(tg, t, all[:n], []string{"FIN", "RST"}[n%2])
		}
	}
	eventually(t, "all connections gone", func() bool { return tg.t.Connections() == 0 })
	if n := tg.free(); n != 16<<20 {
		t.Errorf("%d bytes of the arena are free", n)
	}
}

// One byte per segment, and all in one.
func TestSegmentation(t *testing.T) {
	tg := serve(t, options{})
	for _, p := range []pdu.Params{{}, {HeaderDigest: true, DataDigest: true, HPDA: 15}} {
		all := conversation(p)
		c := tg.dial(t)
		c.send(all)
		want := make([]byte, 128+24+3*(24+24)+3*24+512+1024+2048)
		if p.HeaderDigest {
			want = make([]byte, 128+28+3*(64+28)+3*28+3*4+512+1024+2048)
		}
		if _, err := io.ReadFull(c, want); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		c = tg.dial(t)
		for i := range all {
			c.send(all[i : i+1])
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		if !bytes.Equal(got, want) {
			t.Error("answers depend on segmentation")
		}
	}
}

// A thousand commands in as few segments as possible.
func TestManyPDUs(t *testing.T) {
	tg := serve(t, options{cfg: Config{MaxDepth: 1024}, lend: true})
	c := tg.connect(t, pdu.Params{}, 1024, 0)
	var all []byte
	for i := range 1000 {
		sqe := rw(nvme.NVMRead, uint16(i), i*512, 512, false)
		all = append(all, c.capsule(&sqe, nil)...)
	}
	c.send(all)
	for i := range 1000 {
		m := c.recv()
		if m.t != pdu.TypeC2HData || len(m.data) != 512 || m.data[1] != pattern(i*512+1) {
			t.Fatalf("command %d: %v %x", i, m.t, m.raw)
		}
		c.status(uint16(i), nvme.Success)
	}
}

// FuzzStream feeds a stream to the target in one piece and in many, and compares what it says and what it has done. The first byte
// chooses digests, the others damage a good conversation and follow it.
func FuzzStream(f *testing.F) {
	f.Add([]byte{0}, uint64(1))
	f.Add([]byte{3, 10, 0, 255}, uint64(2))
	f.Add(append([]byte{4}, conversation(pdu.Params{})[1000:1400]...), uint64(3))
	h := newHand(f, options{})
	defer h.close()
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		if len(b) == 0 || len(b) > 64<<10 {
			return
		}
		p := pdu.Params{HeaderDigest: b[0]&1 != 0, DataDigest: b[0]&2 != 0}
		stream := conversation(p)
		if b[0]&4 != 0 {
			stream = append(stream, b[1:]...)
		}
		for i := 1; i+2 < len(b) && i < 24; i += 3 {
			damage(stream, int(b[i])<<8|int(b[i+1]), b[i+2])
		}
		compare(t, h, stream, seed)
	})
}

// damage changes a byte of a conversation, but not of the Connect: if that fails, what follows exceeds the depth of the queue or not
// depending on when responses have left.
func damage(stream []byte, at int, by byte) {
	const from, to = pdu.ICReqSize, pdu.ICReqSize + pdu.CapsuleCmdSize + nvme.ConnectDataSize + 2*pdu.DigestSize
	if at %= len(stream) - (to - from); at >= from {
		at += to - from
	}
	stream[at] ^= by
}

// compare runs a stream against the target twice, cut differently.
func compare(t *testing.T, h *hand, stream []byte, seed uint64) {
	const disk = 64 << 10 // what conversations write to
	run := func(piece func() int) string {
		fillPattern(h.d.data.Bytes()[:disk])
		executed, written := h.d.executed.Load(), h.d.writes.Load()
		h.open()
		var said []byte
		for b := stream; len(b) > 0; {
			n := min(piece(), len(b))
			h.send(b[:n])
			b = b[n:]
			said = append(said, h.recv()...)
		}
		h.hangUp()
		if n := len(h.g.queues); n != 0 {
			t.Errorf("%d connections are left", n)
		}
		if free := h.arena.Available(); free != len(h.arena.Region().Bytes()) {
			t.Errorf("%d bytes of the arena are free", free)
		}
		return fmt.Sprintf("%d executed, %d written, disk %x, said %d bytes %x", h.d.executed.Load()-executed,
			h.d.writes.Load()-written, sha256.Sum256(h.d.data.Bytes()[:disk]), len(said), sha256.Sum256(sorted(t, said)))
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	whole := run(func() int { return len(stream) })
	cut := run(func() int { return 1 + rnd.IntN(1<<rnd.IntN(12)) })
	if whole != cut {
		t.Errorf("in one piece: %s\nin many:      %s", whole, cut)
	}
}

// sorted lists the PDUs that the target said, in an order of its own and without what may depend on the order of execution: commands
// of one batch may be executed in any.
func sorted(t *testing.T, b []byte) []byte {
	var list []string
	for len(b) > 0 {
		if len(b) < pdu.HeaderSize || len(b) < int((*pdu.Header)(b).PLEN()) {
			t.Fatalf("the target said half a PDU: %x", b)
		}
		m := b[:(*pdu.Header)(b).PLEN()]
		b = b[len(m):]
		switch (*pdu.Header)(m).Type() {
		case pdu.TypeCapsuleResp:
			cqe := (*pdu.CapsuleResp)(m).CQE()
			list = append(list, fmt.Sprint(cqe.CID(), cqe.Status()))
		case pdu.TypeC2HData:
			list = append(list, string(m[:pdu.DataSize]))
		default:
			list = append(list, string(m))
		}
	}
	slices.Sort(list)
	return []byte(strings.Join(list, ""))
}

// Damaged conversations, a few of what FuzzStream tries.
func TestRandomStreams(t *testing.T) {
	h := newHand(t, options{})
	defer h.close()
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 500 {
		p := pdu.Params{HeaderDigest: i&1 != 0, DataDigest: i&2 != 0}
		stream := conversation(p)
		for range rnd.IntN(3) {
			damage(stream, rnd.IntN(1<<16), byte(1<<rnd.IntN(8)))
		}
		compare(t, h, stream, rnd.Uint64())
	}
}
