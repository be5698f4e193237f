package pdu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
