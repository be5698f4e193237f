package packet

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// Headers against their pictures in the specification (sections 9.2 and 9.3).
func TestHeaderGolden(t *testing.T) {
	put := func(n int, put func([]byte)) string {
		b := bytes.Repeat([]byte{0xee}, n)
		put(b)
		return hex.EncodeToString(b)
	}
	bth := BTH{
		Opcode: SendLastInvalidate, Solicited: true, Pad: 3, PKey: 0x1234, BECN: true,
		QPN: 0xabcdef, AckReq: true, PSN: 0x987654,
	}
	all := BTH{Opcode: 0xff, MigReq: true, PKey: 0xffff, FECN: true, QPN: PSNMask, PSN: PSNMask}
	for _, tt := range []struct{ name, got, want string }{
		{"BTH", put(BTHSize, bth.Put), "16b01234" + "40abcdef" + "80987654"},
		{"BTH, other bits", put(BTHSize, all.Put), "ff40ffff" + "80ffffff" + "00ffffff"},
		{
			"RETH", put(RETHSize, RETH{0x0102030405060708, 0x11121314, 0x21222324}.Put),
			"0102030405060708" + "11121314" + "21222324",
		},
		{"AETH", put(AETHSize, AETH{NAKAccess, 0x010203}.Put), "62010203"},
		{"ACK", put(AETHSize, AETH{AckNoCredits, PSNMask}.Put), "1fffffff"},
		{"IETH", put(IETHSize, IETH(0x01020304).Put), "01020304"},
		{"DETH", put(DETHSize, DETH{0x80010000, 1}.Put), "80010000" + "00000001"},
	} {
		testutil.True(t, tt.got == tt.want, "%s: %s, want %s", tt.name, tt.got, tt.want)
	}
	for _, h := range []BTH{bth, all} {
		b := make([]byte, BTHSize)
		h.Put(b)
		if got, ok := ParseBTH(b); !ok || got != h {
			t.Errorf("%+v, want %+v", got, h)
		}
	}
}

func TestParse(t *testing.T) {
	packet := func(op Opcode, pad uint8, n int) []byte {
		b := make([]byte, n)
		(&BTH{Opcode: op, Pad: pad, QPN: 2}).Put(b)
		return b
	}
	version := packet(SendOnly, 0, 12)
	version[1] |= 1
	for _, tt := range []struct {
		name    string
		packet  []byte
		ok      bool
		kind    Kind
		payload int
	}{
		{"empty SEND", packet(SendOnly, 0, 12), true, KindSend, 0},
		{"SEND of a byte", packet(SendOnly, 3, 16), true, KindSend, 1},
		{"largest SEND", packet(SendOnly, 0, 12+4096), true, KindSend, 4096},
		{"too large", packet(SendOnly, 0, 12+4100), false, 0, 0},
		{"WRITE", packet(WriteFirst, 0, 28+1024), true, KindWrite, 1024},
		{"largest WRITE", packet(WriteOnly, 0, 28+4096), true, KindWrite, 4096},
		{"short WRITE", packet(WriteOnly, 0, 24), false, 0, 0},
		{"padding without payload", packet(WriteOnly, 1, 28), false, 0, 0},
		{"padding in the header", packet(SendOnlyInvalidate, 2, 16), false, 0, 0},
		{"SEND with invalidate", packet(SendOnlyInvalidate, 2, 20), true, KindSend, 2},
		{"READ request", packet(ReadRequest, 0, 28), true, KindRead, 0},
		{"READ request with data", packet(ReadRequest, 0, 32), false, 0, 0},
		{"READ response", packet(ReadResponseOnly, 0, 20), true, KindReadResponse, 4},
		{"READ response, middle", packet(ReadResponseMiddle, 0, 16), true, KindReadResponse, 4},
		{"ACK", packet(Acknowledge, 0, 16), true, KindAck, 0},
		{"ACK with padding", packet(Acknowledge, 1, 16), false, 0, 0},
		{"ACK without AETH", packet(Acknowledge, 0, 12), false, 0, 0},
		{"MAD", packet(UDSendOnly, 0, 20+256), true, KindDatagram, 256},
		{"CNP", packet(CNP, 0, 12+16), true, KindCNP, 16},
		{"atomic", packet(FetchAdd, 0, 12), true, KindOther, 0},
		{"immediate data", packet(SendOnlyImm, 0, 20), true, KindOther, 0},
		{"reserved", packet(0x1f, 3, 12), true, KindOther, 0},
		{"odd length", packet(SendOnly, 0, 14), false, 0, 0},
		{"no BTH", make([]byte, 8), false, 0, 0},
		{"transport version 1", version, false, 0, 0},
	} {
		var h Header
		ok := h.Parse(tt.packet)
		if ok != tt.ok || ok && (h.Kind != tt.kind || len(h.Payload) != tt.payload) {
			t.Errorf("%s: %v %v, %d bytes", tt.name, ok, h.Kind, len(h.Payload))
		}
	}
}

func TestOpcodes(t *testing.T) {
	for op := range 256 {
		o := Opcode(op)
		testutil.True(t, (o.Kind() == KindOther) == (o.HeaderSize() == 0) && o.String() != "",
			"%v: kind %v, %d bytes", o, o.Kind(), o.HeaderSize())
		switch o.Kind() {
		case KindSend, KindWrite, KindRead:
			testutil.True(t, o.RC() && !o.Response(), "%v is a request", o)
		case KindReadResponse, KindAck:
			testutil.True(t, o.RC() && o.Response(), "%v is a response", o)
		}
	}
}

func TestPSN(t *testing.T) {
	for _, tt := range []struct {
		a, b uint32
		diff int
	}{
		{5, 3, 2},
		{3, 5, -2},
		{0, PSNMask, 1},
		{PSNMask, 0, -1},
		{7, 7, 0},
		{1 << 23, 0, -1 << 23},
		{1<<23 - 1, 0, 1<<23 - 1},
		{100, PSNMask - 99, 200},
	} {
		if d := DiffPSN(tt.a, tt.b); d != tt.diff {
			t.Errorf("%#x is %d after %#x, want %d", tt.a, d, tt.b, tt.diff)
		}
	}
}

// FuzzParse: nothing panics, and a packet that is built again from its parts is the same.
func FuzzParse(f *testing.F) {
	for _, op := range []Opcode{
		SendOnlyInvalidate, WriteOnly, ReadRequest, Acknowledge, ReadResponseFirst, UDSendOnly,
		CNP, SendMiddle,
	} {
		b := make([]byte, op.HeaderSize())
		(&BTH{Opcode: op, PKey: PKeyDefault, QPN: 3, PSN: 4}).Put(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Header
		if !h.Parse(b) || h.Kind == KindOther {
			return
		}
		c := make([]byte, h.Opcode.HeaderSize(), len(b))
		h.Put(c)
		ext := c[BTHSize:]
		switch {
		case h.Kind == KindRead || h.Kind == KindWrite && h.Opcode.First():
			h.RETH.Put(ext)
		case h.Kind == KindAck || h.Kind == KindReadResponse && len(ext) > 0:
			h.AETH.Put(ext)
		case h.Opcode.Invalidates():
			h.IETH.Put(ext)
		case h.Kind == KindDatagram:
			h.DETH.Put(ext)
		}
		c = append(append(c, h.Payload...), b[len(b)-int(h.Pad):]...)
		want := bytes.Clone(b)
		want[4] &= 0xc0 // reserved bits
		want[8] &= 0x80
		if h.Kind == KindDatagram {
			want[16] = 0
		}
		testutil.True(t, bytes.Equal(c, want), "% x, want % x", c, want)
	})
}

// golden are packets of other implementations, from the IP header to the ICRC.
var golden = []struct{ name, packet string }{
	{
		"CNP of a ConnectX-4 Lx (identification 0x718c)", `
		45c2003c 718c4000 40119161 0a001101 0a001201 000012b7 00280000
		8100ffff 40000118 00000000 00000000 00000000 00000000 00000000 82fd002a`,
	},
	{
		"UC SEND (identification 0x478)", `
		45010040 04784000 4011b4d5 c0a80007 c0a80007 c00012b7 002caca2
		2460ffff 000000d3 00cf1710 4630818b e28935d9 0e9a9550 5401be88 5e500000 78f353f3`,
	},
	{
		"READ request of rxe, Linux 7.3 (identification 0x8e86)", `
		4500003c 8e864000 40119828 0a000002 0a000001 f1a512b7 00280000
		0c00ffff 00000014 8039c08a 00005500 0004d329 00000522 00002329 90ef2046`,
	},
	{
		"ACK of rxe, Linux 7.3, IPv6", `
		60000000 001c1140 fd000000 00000000 00000000 00000001
		fd000000 00000000 00000000 00000002 c12112b7 001c0000
		1100ffff 00000011 00d19676 1f000001 0ba29f3f`,
	},
}

// split takes a packet with its IP header apart.
func split(b []byte) (v ICRC, id uint16, packet []byte) {
	ip := ip4Size
	var src, dst netip.Addr
	if b[0]>>4 == 4 {
		src, _ = netip.AddrFromSlice(b[12:16])
		dst, _ = netip.AddrFromSlice(b[16:20])
		id = binary.BigEndian.Uint16(b[4:])
	} else {
		ip = ip6Size
		src, _ = netip.AddrFromSlice(b[8:24])
		dst, _ = netip.AddrFromSlice(b[24:40])
	}
	v.Set(src, dst, binary.BigEndian.Uint16(b[ip:]), binary.BigEndian.Uint16(b[ip+2:]))
	return v, id, b[ip+udpSize:]
}

func TestICRCGolden(t *testing.T) {
	for _, g := range golden {
		v, id, b := split(testutil.Unhex(t, g.packet))
		v.Identify(id) // as if the socket had told
		if !v.Check(b, false) {
			n := len(b) - ICRCSize
			t.Errorf("%s: ICRC %08x, computed %08x", g.name, binary.LittleEndian.Uint32(b[n:]),
				v.sum(b[:n]))
		}
	}
}

// The check finds the identification of a packet that does not have 0.
func TestICRCIdentification(t *testing.T) {
	for _, g := range golden {
		v, id, b := split(testutil.Unhex(t, g.packet))
		n := len(b) - ICRCSize
		got, ok := identification(v.sum(b[:n])^binary.LittleEndian.Uint32(b[n:]), n)
		if v.ip == ip4Size && (!ok || got != id) {
			t.Errorf("%s: identification %#x %v, want %#x", g.name, got, ok, id)
		}
		testutil.True(t, v.Check(b, true) && v.Check(b, false) == (id == 0),
			"%s: any identification %v, only 0 %v", g.name, v.Check(b, true), v.Check(b, false))
	}

	r := rand.New(rand.NewPCG(1, 2))
	var v ICRC
	v.Set(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 50000, 4791)
	b := make([]byte, MaxSize+ICRCSize)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	for n := BTHSize; n <= MaxSize; n += 4 {
		want := uint16(r.Uint32())
		v.Identify(want)
		with := v.sum(b[:n])
		v.Identify(0)
		if got, ok := identification(with^v.sum(b[:n]), n); !ok || got != want {
			t.Fatalf("%d bytes: %#x %v, want %#x", n, got, ok, want)
		}
	}
}

// A change that passes needs a fitting identification: about one of 65,536 does. A change of one
// byte never does, in any length.
func TestICRCCorruption(t *testing.T) {
	var v ICRC
	v.Set(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 50000, 4791)
	r := rand.New(rand.NewPCG(3, 4))
	b := make([]byte, 256+BTHSize+ICRCSize)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	v.Put(b)
	passed := 0
	for range 1 << 16 {
		c := [2]int{r.IntN(len(b)), r.IntN(len(b))}
		x := [2]byte{byte(1 + r.IntN(255)), byte(1 + r.IntN(255))}
		b[c[0]] ^= x[0]
		b[c[1]] ^= x[1]
		if v.Check(b, true) && c[0] != 4 && c[1] != 4 && c[0] != c[1] {
			passed++
		}
		if v.Check(b, false) && c[0] != 4 && c[1] != 4 && c[0] != c[1] {
			t.Fatalf("changes of the bytes %v passed", c)
		}
		b[c[0]] ^= x[0]
		b[c[1]] ^= x[1]
	}
	testutil.True(t, passed <= 16, "%d of 65536 passed", passed)
}

func BenchmarkICRC(b *testing.B) {
	var v ICRC
	v.Set(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 50000, 4791)
	p := make([]byte, 4096+BTHSize+ICRCSize)
	v.Put(p)
	b.Run("4096", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v.Check(p, true)
		}
	})
	v.Identify(7)
	v.Put(p)
	v.Identify(0)
	b.Run("4096, identification", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v.Check(p, true)
		}
	})
}
