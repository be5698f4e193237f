package pdu

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// The sizes of include/linux/nvme-tcp.h.
var (
	_ [8]byte   = [len(Header{})]byte{}
	_ [128]byte = [len(IC{})]byte{}
	_ [24]byte  = [len(TermReq{})]byte{}
	_ [72]byte  = [len(CapsuleCmd{})]byte{}
	_ [24]byte  = [len(CapsuleResp{})]byte{}
	_ [24]byte  = [len(Data{})]byte{}
)

func zeros(n int) string { return strings.Repeat("00", n) }

var both = &Params{HeaderDigest: true, DataDigest: true, MaxH2CData: 0x20000, InCapsule: 8192}

func TestGolden(t *testing.T) {
	plain := &Params{MaxH2CData: 0x400000, InCapsule: 8192}
	var (
		req  IC
		resp IC
		cmd  CapsuleCmd
		rsp  CapsuleResp
		data Data
		r2t  Data
		cqe  nvme.CQE
	)
	cqe.Fill(0x1122334455667788, 7, 0xABCD, nvme.InvalidField|nvme.DNR)
	tests := []struct {
		name  string
		build func() []byte
		want  string
	}{
		{"ICReq", func() []byte {
			req = ICReq(&Params{HeaderDigest: true, HPDA: 31}, 1)
			return req[:]
		}, "00 00 80 00 80000000 0000 1f 01 00000000" + zeros(112)},
		{
			"ICReq, 4 R2Ts, both digests", func() []byte { req = ICReq(both, 4); return req[:] },
			"00 00 80 00 80000000 0000 00 03 03000000" + zeros(112),
		},
		{
			"ICResp", func() []byte { resp = ICResp(both); return resp[:] },
			"01 00 80 00 80000000 0000 00 03 00000200" + zeros(112),
		},
		{"C2HTermReq", func() []byte {
			return AppendTermReq(nil, TypeC2HTermReq, Fault{FESInvalidHeader, 4},
				[]byte{0xAA, 0xBB})
		}, "03 00 18 00 1a000000 0100 04000000" + zeros(10) + "aabb"},
		{
			"CapsuleCmd without data", func() []byte { cmd.Set(both, 0); return cmd[:8] },
			"04 01 48 00 4c000000",
		},
		{
			"CapsuleCmd with data", func() []byte { cmd.Set(both, 4096); return cmd[:8] },
			"04 03 48 4c 50100000",
		},
		{
			"CapsuleCmd with data, no digest",
			func() []byte { cmd.Set(plain, 512); return cmd[:8] },
			"04 00 48 48 48020000",
		},
		{
			"CapsuleResp", func() []byte { rsp.Set(plain, &cqe); return rsp[:] },
			"05 00 18 00 18000000 8877665544332211 0700 0000 cdab 0480",
		},
		{
			"CapsuleResp with digest", func() []byte { rsp.Set(both, &cqe); return rsp[:8] },
			"05 01 18 00 1c000000",
		},
		{
			"H2CData", func() []byte {
				data.SetH2C(plain, LastPDU, 0x1234, 0x5678, 4096, 8192)
				return data[:]
			},
			"06 04 18 18 18200000 3412 7856 00100000 00200000 00000000",
		},
		{"C2HData with digests, aligned", func() []byte {
			data.SetC2H(&Params{HeaderDigest: true, DataDigest: true, HPDA: 31}, LastPDU|Success, 1,
				0, 512)
			return data[:]
		}, "07 0f 18 80 84020000 0100 0000 00000000 00020000 00000000"},
		{
			"R2T", func() []byte { r2t.SetR2T(both, 9, 3, 0, 131072); return r2t[:] },
			"09 01 18 00 1c000000 0900 0300 00000000 00000200 00000000",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, want := tt.build(), testutil.Unhex(t, tt.want); !bytes.Equal(got, want) {
				t.Errorf("got  %x\nwant %x", got, want)
			}
		})
	}
}

func TestGetters(t *testing.T) {
	req := ICReq(&Params{HeaderDigest: true, HPDA: 5}, 3)
	testutil.True(t, req.MaxH2CData() == 2 && req.PDA() == 5 && req.HeaderDigest() &&
		!req.DataDigest() && req.PFV() == 0, "ICReq %x", req)
	resp := ICResp(&Params{DataDigest: true, CPDA: 2, MaxH2CData: 65536})
	testutil.True(t, resp.MaxH2CData() == 65536 && resp.PDA() == 2 && !resp.HeaderDigest() &&
		resp.DataDigest() && resp.Check().OK(), "ICResp %x", resp)
	var d Data
	d.SetH2C(both, 0, 1, 2, 3, 4)
	testutil.True(t, d.CCCID() == 1 && d.TTAG() == 2 && d.DATAO() == 3 && d.DATAL() == 4,
		"H2CData %x", d)
	var r Data
	r.SetR2T(both, 1, 2, 3, 4)
	testutil.True(t, r.CCCID() == 1 && r.TTAG() == 2 && r.DATAO() == 3 && r.DATAL() == 4, "R2T %x",
		r)
	b := AppendTermReq(nil, TypeH2CTermReq, Fault{FESHeaderDigest, 0xDEADBEEF}, make([]byte, 500))
	testutil.MustTrue(t, len(b) == MaxTermReq, "TermReq of %d bytes", len(b))
	testutil.Equal(t, (*TermReq)(b[:TermReqSize]).Fault(), (Fault{FESHeaderDigest, 0xDEADBEEF}),
		"TermReq")
	testutil.True(t, TypeR2T.String() == "R2T" && Type(0x16).String() == "type 16h" &&
		Type(8).String() == "type 08h", "type names")
}

// The test vector of RFC 3720, B.4: 32 bytes of zeros.
func TestDigest(t *testing.T) {
	testutil.Equal(t, CRC(0, make([]byte, 32)), 0x8A9136AA, "CRC32C of zeros")
	b := make([]byte, 36)
	PutHeaderDigest(b, 32)
	testutil.True(t, bytes.Equal(b[32:], []byte{0xaa, 0x36, 0x91, 0x8a}) && HeaderDigestOK(b, 32),
		"digest on the wire %x", b[32:])
	b[5] ^= 1
	testutil.True(t, !HeaderDigestOK(b, 32), "a broken header passed")
}

func TestPDO(t *testing.T) {
	for align := range 32 {
		for _, dg := range []bool{false, true} {
			p := Params{HeaderDigest: dg}
			got := p.PDO(DataSize, uint8(align))
			first := DataSize + p.HeaderDigestSize()
			unit := 4 * (align + 1)
			testutil.True(t, got%unit == 0 && got >= first && got-unit < first && got <= 255,
				"PDO(24, %d) with digest %v is %d", align, dg, got)
		}
	}
}

// TestCRC: a digest does not depend on how the data is cut.
func TestCRC(t *testing.T) {
	b := make([]byte, 3*loadMost)
	for i := range b {
		b[i] = byte(i * 7)
	}
	for _, n := range []int{0, 1, loadMin, loadMin + 1, loadMost, loadMost + loadMin + 1, len(b)} {
		want := crc32.Checksum(b[:n], castagnoli)
		testutil.Equal(t, CRC(0, b[:n]), want, "CRC32C")
		testutil.Equal(t, CRC(CRC(0, b[:n/3]), b[n/3:n]), want, "CRC32C in two pieces")
	}
}

func header(t Type, f Flags, hlen, pdo int, plen uint32) (h Header) {
	h.Set(t, f, hlen, pdo, plen)
	return h
}

// TestHeaders runs testdata/sequences. "go test ./fabric/tcp/pdu -run TestHeaders -args -rewrite"
// writes the current results of Check.
func TestHeaders(t *testing.T) {
	flags := map[string]Flags{
		"-": 0, "header-digest": HDGSTF, "data-digest": DDGSTF, "last": LastPDU,
	}
	datadriven.RunTest(t, "testdata/sequences/headers.txt",
		func(t *testing.T, d *datadriven.TestData) string {
			p := &Params{MaxH2CData: 131072, InCapsule: 8192}
			if p.HeaderDigest = d.HasArg("digests"); p.HeaderDigest {
				p.DataDigest = true
			}
			if d.HasArg("aligned") {
				p.CPDA = 3
			}
			var out strings.Builder
			for line := range strings.SplitSeq(d.Input, "\n") {
				var typ, flag string
				var hlen, pdo int
				var plen uint32
				_, fields, _ := strings.Cut(line, ": ")
				testutil.Value(fmt.Sscan(fields, &typ, &flag, &hlen, &pdo, &plen))(t)
				var h Header
				i := slices.Index(typeNames[:], typ)
				if i < 0 {
					i = testutil.Value(strconv.Atoi(typ))(t)
				}
				h.Set(Type(i), 0, hlen, pdo, plen)
				for f := range strings.SplitSeq(flag, "|") {
					h[1] |= byte(flags[f])
				}
				fault := p.CheckFromHost(&h)
				if d.Cmd == "controller" {
					fault = p.CheckFromController(&h, 512)
				}
				said := "ok"
				if !fault.OK() {
					said = fault.Error()
					at := fmt.Sprintf(" at byte %d", fault.FEI)
					if fault.FEI != 0 && !strings.HasSuffix(said, at) {
						said += at
					}
				}
				fmt.Fprintf(&out, "%s: %s\n", line, said)
			}
			return out.String()
		})
}

func TestCheckICReq(t *testing.T) {
	for hpda := range 256 {
		r := ICReq(&Params{HPDA: uint8(hpda)}, 1)
		want := Fault{}
		if hpda > 31 {
			want = Fault{FESInvalidHeader, OffPDA}
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
		r := ICResp(&Params{MaxH2CData: m})
		testutil.True(t, r.Check().OK() == ok, "MAXH2CDATA %d: %v", m, r.Check())
	}
}

func TestCheckData(t *testing.T) {
	var d Data
	d.SetH2C(both, 0, 1, 2, 0, 512)
	f := d.Check(both)
	testutil.True(t, f.OK(), "good data: %v", f)
	for _, n := range []byte{0, 1, 0xFF} { // DATAL that disagrees with PLEN, and 0
		e := d
		e[OffDATAL], e[OffDATAL+1] = n, 0
		testutil.Equal(t, e.Check(both), (Fault{FESInvalidHeader, OffDATAL}), "DATAL %d", n)
	}
}

// FuzzCheck: a header that passes has its parts inside PLEN and obeys every limit, for any bytes.
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
			testutil.MustTrue(t, h.HLEN() == ty.HLEN() && uint64(h.PLEN()) >= uint64(h.HLEN()),
				"%x passed", *h)
			switch ty {
			case TypeCapsuleCmd, TypeH2CData, TypeC2HData:
				n := p.DataLength(h)
				testutil.MustTrue(t, n <= most, "%x passed with %d bytes of data", *h, n)
				if n > 0 && uint64(h.PDO())+uint64(n)+
					uint64(p.DataDigestSize()) != uint64(h.PLEN()) {
					t.Fatalf("%x: %d bytes of data do not fit PLEN", *h, n)
				}
				testutil.MustTrue(t, n <= 0 || h.PDO() >= h.HLEN()+p.HeaderDigestSize(),
					"%x: data overlaps the header", *h)
			case TypeH2CTermReq, TypeC2HTermReq:
				testutil.MustTrue(t, h.PLEN() <= MaxTermReq, "%x passed", *h)
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
		testutil.MustTrue(t, both.CheckFromHost(c.Header()).OK(), "fault")
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
