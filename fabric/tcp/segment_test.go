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
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

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
