package pdu

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

func header(t Type, f Flags, hlen, pdo int, plen uint32) (h Header) {
	h.Set(t, f, hlen, pdo, plen)
	return h
}

func TestCheckFromHost(t *testing.T) {
	plain := &Params{MaxH2CData: 131072, InCapsule: 8192}
	aligned := &Params{MaxH2CData: 131072, InCapsule: 8192, CPDA: 3}
	tests := []struct {
		name string
		p    *Params
		h    Header
		want Fault
	}{
		{"ICReq", plain, header(TypeICReq, 0, 128, 0, 128), Fault{}},
		{"ICReq HLEN", plain, header(TypeICReq, 0, 127, 0, 128), Fault{FESInvalidHeader, OffHLEN}},
		{"ICReq PLEN", plain, header(TypeICReq, 0, 128, 0, 129), Fault{FESInvalidHeader, OffPLEN}},
		{"TermReq bare", both, header(TypeH2CTermReq, 0, 24, 0, 24), Fault{}},
		{"TermReq longest", both, header(TypeH2CTermReq, 0, 24, 24, 152), Fault{}},
		{
			"TermReq too long", both, header(TypeH2CTermReq, 0, 24, 24, 153),
			Fault{FESInvalidHeader, OffPLEN},
		},
		{
			"TermReq too short", both, header(TypeH2CTermReq, 0, 24, 24, 23),
			Fault{FESInvalidHeader, OffPLEN},
		},
		{
			"TermReq HLEN", both, header(TypeH2CTermReq, 0, 128, 24, 152),
			Fault{FESInvalidHeader, OffHLEN},
		},
		{
			"C2H type from a host", plain, header(TypeC2HData, 0, 24, 24, 28),
			Fault{FESInvalidHeader, OffType},
		},
		{"unknown type 08h", plain, header(8, 0, 24, 24, 28), Fault{FESInvalidHeader, OffType}},
		{"unknown type FFh", plain, header(0xFF, 0, 24, 24, 28), Fault{FESInvalidHeader, OffType}},

		{"command", plain, header(TypeCapsuleCmd, 0, 72, 0, 72), Fault{}},
		{"command with digest", both, header(TypeCapsuleCmd, HDGSTF, 72, 0, 76), Fault{}},
		{
			"command, DDGSTF without data", both, header(TypeCapsuleCmd, HDGSTF|DDGSTF, 72, 0, 76),
			Fault{},
		},
		{
			"command HLEN", plain, header(TypeCapsuleCmd, 0, 64, 0, 72),
			Fault{FESInvalidHeader, OffHLEN},
		},
		{
			"command HDGSTF missing", both, header(TypeCapsuleCmd, 0, 72, 0, 76),
			Fault{FESInvalidHeader, OffFlags},
		},
		{
			"command HDGSTF not agreed", plain, header(TypeCapsuleCmd, HDGSTF, 72, 0, 76),
			Fault{FESInvalidHeader, OffFlags},
		},
		{
			"command DDGSTF not agreed", plain, header(TypeCapsuleCmd, DDGSTF, 72, 0, 72),
			Fault{FESInvalidHeader, OffFlags},
		},
		{
			"command PLEN 0", plain, header(TypeCapsuleCmd, 0, 72, 0, 0),
			Fault{FESInvalidHeader, OffPLEN},
		},
		{
			"command PLEN < HLEN", plain, header(TypeCapsuleCmd, 0, 72, 0, 71),
			Fault{FESInvalidHeader, OffPLEN},
		},
		{
			"command PLEN inside the digest", both, header(TypeCapsuleCmd, HDGSTF, 72, 0, 75),
			Fault{FESInvalidHeader, OffPLEN},
		},
		{
			"command PLEN FFFFFFFFh", plain, header(TypeCapsuleCmd, 0, 72, 72, 0xFFFFFFFF),
			Fault{FESLimit, OffPLEN},
		},
		{
			"command PDO without data", plain, header(TypeCapsuleCmd, 0, 72, 72, 72),
			Fault{},
		},
		{
			"command PDO = HLEN without data, with digests", both,
			header(TypeCapsuleCmd, HDGSTF, 72, 72, 76),
			Fault{},
		},
		{
			"command PDO = PLEN without data, with digests", both,
			header(TypeCapsuleCmd, HDGSTF|DDGSTF, 72, 76, 76),
			Fault{},
		},
		{
			"command PDO < HLEN without data", plain, header(TypeCapsuleCmd, 0, 72, 71, 72),
			Fault{FESInvalidHeader, OffPDO},
		},
		{
			"command PDO > PLEN without data", plain, header(TypeCapsuleCmd, 0, 72, 73, 72),
			Fault{FESInvalidHeader, OffPDO},
		},
		{"command with data", plain, header(TypeCapsuleCmd, 0, 72, 72, 72+4096), Fault{}},
		{
			"command with data and digests", both,
			header(TypeCapsuleCmd, HDGSTF|DDGSTF, 72, 76, 80+4096),
			Fault{},
		},
		{
			"command with most data", both, header(TypeCapsuleCmd, HDGSTF|DDGSTF, 72, 76, 80+8192),
			Fault{},
		},
		{
			"command with too much data", both,
			header(TypeCapsuleCmd, HDGSTF|DDGSTF, 72, 76, 81+8192),
			Fault{FESLimit, OffPLEN},
		},
		{
			"command DDGSTF missing", both, header(TypeCapsuleCmd, HDGSTF, 72, 76, 80+4096),
			Fault{FESInvalidHeader, OffFlags},
		},
		{
			"command DDGSTF, data, not agreed", plain,
			header(TypeCapsuleCmd, DDGSTF, 72, 72, 76+4096),
			Fault{FESInvalidHeader, OffFlags},
		},
		{
			"command, only a data digest", both, header(TypeCapsuleCmd, HDGSTF|DDGSTF, 72, 76, 80),
			Fault{FESInvalidHeader, OffPLEN},
		},
		{
			"command PDO 0 with data", plain, header(TypeCapsuleCmd, 0, 72, 0, 72+512),
			Fault{FESInvalidHeader, OffPDO},
		},
		{
			"command PDO < HLEN", plain, header(TypeCapsuleCmd, 0, 72, 68, 72+512),
			Fault{FESInvalidHeader, OffPDO},
		},
		{
			"command PDO in the digest", both,
			header(TypeCapsuleCmd, HDGSTF|DDGSTF, 72, 72, 80+512),
			Fault{FESInvalidHeader, OffPDO},
		},
		{
			"command PDO > PLEN", plain, header(TypeCapsuleCmd, 0, 72, 100, 76),
			Fault{FESInvalidHeader, OffPDO},
		},
		{
			"command PDO = PLEN", plain, header(TypeCapsuleCmd, 0, 72, 76, 76),
			Fault{FESInvalidHeader, OffPDO},
		},
		{
			"command PDO odd", plain, header(TypeCapsuleCmd, 0, 72, 74, 72+512),
			Fault{FESInvalidHeader, OffPDO},
		},
		{"command padded", plain, header(TypeCapsuleCmd, 0, 72, 128, 128+512), Fault{}},
		{"command aligned", aligned, header(TypeCapsuleCmd, 0, 72, 80, 80+512), Fault{}},
		{
			"command not aligned", aligned, header(TypeCapsuleCmd, 0, 72, 76, 76+512),
			Fault{FESInvalidHeader, OffPDO},
		},

		{"data", plain, header(TypeH2CData, LastPDU, 24, 24, 24+1), Fault{}},
		{"data with digests", both, header(TypeH2CData, HDGSTF|DDGSTF, 24, 28, 32+131072), Fault{}},
		{
			"data HLEN", plain, header(TypeH2CData, 0, 28, 24, 24+1),
			Fault{FESInvalidHeader, OffHLEN},
		},
		{"data empty", plain, header(TypeH2CData, 0, 24, 24, 24), Fault{FESInvalidHeader, OffPLEN}},
		{
			"data over MAXH2CDATA", plain, header(TypeH2CData, 0, 24, 24, 25+131072),
			Fault{FESLimit, OffPLEN},
		},
		{
			"data PLEN FFFFFFFFh", both, header(TypeH2CData, HDGSTF|DDGSTF, 24, 28, 0xFFFFFFFF),
			Fault{FESLimit, OffPLEN},
		},
	}
	for _, tt := range tests {
		testutil.Equal(t, tt.p.CheckFromHost(&tt.h), tt.want, "%s", tt.name)
	}
}

func TestCheckFromController(t *testing.T) {
	tests := []struct {
		name string
		h    Header
		want Fault
	}{
		{"data", header(TypeC2HData, HDGSTF|DDGSTF, 24, 28, 32+512), Fault{}},
		{
			"data too long", header(TypeC2HData, HDGSTF|DDGSTF, 24, 28, 33+512),
			Fault{FESLimit, OffPLEN},
		},
		{"response", header(TypeCapsuleResp, HDGSTF, 24, 0, 28), Fault{}},
		{
			"response with data", header(TypeCapsuleResp, HDGSTF|DDGSTF, 24, 28, 40),
			Fault{FESInvalidHeader, OffPLEN},
		},
		{"R2T", header(TypeR2T, HDGSTF, 24, 0, 28), Fault{}},
		{"R2T without digest", header(TypeR2T, 0, 24, 0, 24), Fault{FESInvalidHeader, OffFlags}},
		{"ICResp", header(TypeICResp, 0, 128, 0, 128), Fault{}},
		{"C2HTermReq", header(TypeC2HTermReq, 0, 24, 24, 96), Fault{}},
		{"command", header(TypeCapsuleCmd, HDGSTF, 72, 0, 76), Fault{FESInvalidHeader, OffType}},
	}
	for _, tt := range tests {
		testutil.Equal(t, both.CheckFromController(&tt.h, 512), tt.want, "%s", tt.name)
	}
}

func TestCheckICReq(t *testing.T) {
	for hpda := range 256 {
		var r ICReq
		r.Set(&Params{HPDA: uint8(hpda)}, 1)
		want := Fault{}
		if hpda > 31 {
			want = Fault{FESInvalidHeader, OffHPDA}
		}
		testutil.Equal(t, r.Check(), want, "HPDA %d", hpda)
		r[OffPFV] = 1
		testutil.Equal(t, r.Check(), (Fault{FESInvalidHeader, OffPFV}), "PFV 1")
	}
}

func TestCheckICResp(t *testing.T) {
	for m, ok := range map[uint32]bool{
		4095: false, 4096: true, 4098: false, 4100: true, 0: false,
		0xFFFFFFFC: true,
	} {
		var r ICResp
		r.Set(&Params{MaxH2CData: m})
		if r.Check().OK() != ok {
			t.Errorf("MAXH2CDATA %d: %v", m, r.Check())
		}
	}
}

func TestCheckData(t *testing.T) {
	var d Data
	d.SetH2C(both, 0, 1, 2, 0, 512)
	if f := d.Check(both); !f.OK() {
		t.Errorf("good data: %v", f)
	}
	for _, n := range []byte{0, 1, 0xFF} { // DATAL that disagrees with PLEN, and 0
		e := d
		e[OffDATAL], e[OffDATAL+1] = n, 0
		testutil.Equal(t, e.Check(both), (Fault{FESInvalidHeader, OffDATAL}), "DATAL %d", n)
	}
}

// A header that passes has its parts inside PLEN and obeys every limit, whatever the bytes are.
func FuzzCheck(f *testing.F) {
	h := header(TypeCapsuleCmd, HDGSTF|DDGSTF, 72, 76, 80+4096)
	f.Add(h[:], true, true, uint8(0), uint32(8192))
	h = header(TypeH2CData, 0, 24, 24, 0xFFFFFFFF)
	f.Add(h[:], false, false, uint8(31), uint32(4096))
	f.Fuzz(func(t *testing.T, b []byte, hd, dd bool, align uint8, most uint32) {
		if len(b) < HeaderSize {
			return
		}
		h := (*Header)(b[:HeaderSize])
		p := &Params{
			HeaderDigest: hd, DataDigest: dd, HPDA: align & 31, CPDA: align & 31,
			MaxH2CData: most, InCapsule: most,
		}
		for _, fault := range []Fault{p.CheckFromHost(h), p.CheckFromController(h, most)} {
			if !fault.OK() {
				_ = fault.Error()
				continue
			}
			ty := h.Type()
			if h.HLEN() != ty.HLEN() || uint64(h.PLEN()) < uint64(h.HLEN()) {
				t.Fatalf("%x passed", *h)
			}
			switch ty {
			case TypeCapsuleCmd, TypeH2CData, TypeC2HData:
				n := p.DataLength(h)
				if n > most {
					t.Fatalf("%x passed with %d bytes of data", *h, n)
				}
				if n > 0 && uint64(h.PDO())+uint64(n)+
					uint64(p.DataDigestSize()) != uint64(h.PLEN()) {
					t.Fatalf("%x: %d bytes of data do not fit PLEN", *h, n)
				}
				if n > 0 && h.PDO() < h.HLEN()+p.HeaderDigestSize() {
					t.Fatalf("%x: data overlaps the header", *h)
				}
			case TypeH2CTermReq, TypeC2HTermReq:
				if h.PLEN() > MaxTermReq {
					t.Fatalf("%x passed", *h)
				}
			}
		}
	})
}

func TestNoAllocations(t *testing.T) {
	var d Data
	var c CapsuleCmd
	buf := make([]byte, 128)
	if n := testing.AllocsPerRun(100, func() {
		d.SetC2H(both, LastPDU, 1, 0, 4096)
		PutHeaderDigest(buf, DataSize)
		c.Set(both, 0)
		if !both.CheckFromHost(c.Header()).OK() {
			t.Fatal("fault")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCheckCapsule(b *testing.B) {
	var c CapsuleCmd
	c.Set(both, 4096)
	for b.Loop() {
		if !both.CheckFromHost(c.Header()).OK() {
			b.Fatal("fault")
		}
	}
}
