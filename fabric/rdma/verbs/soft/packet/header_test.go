package packet

import (
	"bytes"
	"encoding/hex"
	"testing"
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
		if tt.got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, tt.got, tt.want)
		}
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
		if (o.Kind() == KindOther) != (o.HeaderSize() == 0) || o.String() == "" {
			t.Errorf("%v: kind %v, %d bytes", o, o.Kind(), o.HeaderSize())
		}
		switch o.Kind() {
		case KindSend, KindWrite, KindRead:
			if !o.RC() || o.Response() {
				t.Errorf("%v is a request", o)
			}
		case KindReadResponse, KindAck:
			if !o.RC() || !o.Response() {
				t.Errorf("%v is a response", o)
			}
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
		if !bytes.Equal(c, want) {
			t.Errorf("% x, want % x", c, want)
		}
	})
}
