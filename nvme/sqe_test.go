package nvme

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// hexBytes is n bytes from "offset:hex ..." pieces, zero elsewhere.
func hexBytes(t testing.TB, n int, pieces string) []byte {
	t.Helper()
	b := make([]byte, n)
	for _, p := range strings.Fields(pieces) {
		var off int
		at, digits, _ := strings.Cut(p, ":")
		for _, c := range at {
			off = off*10 + int(c-'0')
		}
		v, err := hex.DecodeString(digits)
		testutil.MustTrue(t, err == nil && off+len(v) <= n, "%q: %v", p, err)
		copy(b[off:], v)
	}
	return b
}

// TestCommands compares commands with the bytes that the Linux host sends for them (struct
// nvme_command).
func TestCommands(t *testing.T) {
	for _, tc := range []struct {
		name  string
		build func(s *SQE)
		want  string
	}{
		{"common", func(s *SQE) {
			s.SetOpcode(NVMFlush)
			s.SetFlags(0x40)
			s.SetCID(0x1234)
			s.SetNSID(0xA1B2C3D4)
			s.SetCDW(10, 0x01020304)
			s.SetCDW64(14, 0x1122334455667788)
		}, "1:40 2:3412 4:d4c3b2a1 40:04030201 56:8877665544332211"},
		{"read", func(s *SQE) {
			s.SetOpcode(NVMRead)
			s.SetNSID(1)
			s.RW().Set(0x123456789A, 8, RWFUA|RWLimitedRetry)
			s.SGL1().SetKeyed(SGLSubtypeInvalidate, 0x1122334455667788, 0x012345, 0xCAFEF00D)
		}, "0:02 4:01000000 24:8877665544332211 32:4523010df0feca4f " +
			"40:9a78563412000000 48:070000c0"},
		{"reservation register", func(s *SQE) {
			s.SetOpcode(IOReservationRegister)
			s.Reservation().Set(ReservationReplace, true, 0, SetPTPL)
		}, "0:0d 40:0a0000c0"},
		{"reservation acquire", func(s *SQE) {
			s.SetOpcode(IOReservationAcquire)
			s.Reservation().Set(ReservationPreemptAndAbort, false, ExclusiveAccess, 0)
		}, "0:11 40:0202"},
		{"reservation report", func(s *SQE) {
			s.SetOpcode(IOReservationReport)
			s.Reservation().SetReport(4096, true)
		}, "0:0e 40:ff030000 44:01"},
		{"write in capsule", func(s *SQE) {
			s.SetOpcode(NVMWrite)
			s.RW().Set(1, 65536, 0)
			s.SGL1().SetData(SGLDataBlock, SGLSubtypeOffset, 0, 4096)
		}, "0:01 32:00100000 39:01 40:01 48:ffff"},
		{
			"TCP data",
			func(s *SQE) {
				s.SGL1().SetData(SGLTransportDataBlock, SGLSubtypeTransport, 0, 0x100000)
			}, "32:00001000 39:5a",
		},
		{
			"write zeroes",
			func(s *SQE) { s.SetOpcode(NVMWriteZeroes); s.RW().Set(0, 1, RWDeallocate) },
			"0:08 48:00000002",
		},
		{
			"dataset management",
			func(s *SQE) { s.SetOpcode(NVMDatasetManagement); s.DSM().Set(256, true) },
			"0:09 40:ff 44:04",
		},
		{"identify", func(s *SQE) {
			s.SetOpcode(AdminIdentify)
			s.Identify().Set(CNSCommandSetController, 0x0102, 3)
		}, "0:06 40:06 42:0201 47:03"},
		{"get log", func(s *SQE) {
			s.SetOpcode(AdminGetLogPage)
			s.GetLog().Set(LogANA, 0x40004, 0x1122334455667788, 1, true)
		}, "0:02 40:0c81 42:0000 44:0100 48:8877665544332211"},
		{"set features", func(s *SQE) {
			s.SetOpcode(AdminSetFeatures)
			s.Features().Set(FeatureNumberOfQueues, uint32(MakeNumberOfQueues(16)))
		}, "0:09 40:07 44:0f000f00"},
		{
			"abort", func(s *SQE) { s.SetOpcode(AdminAbort); s.Abort().Set(3, 0x4567) },
			"0:08 40:03006745",
		},
		{
			"connect", func(s *SQE) { s.Connect().Set(2, 127, CATTRNoFlowControl, 5000) },
			"0:7f 4:01 42:0200 44:7f00 46:04 48:88130000",
		},
		{
			"property get CAP",
			func(s *SQE) { s.Property().Set(FabricsPropertyGet, PropertyCAP, 0) },
			"0:7f 4:04 40:01",
		},
		{
			"property set CC",
			func(s *SQE) { s.Property().Set(FabricsPropertySet, PropertyCC, uint64(CCLinux)) },
			"0:7f 44:14 48:01004600",
		},
	} {
		var s SQE
		tc.build(&s)
		want := SQE(hexBytes(t, SQESize, tc.want))
		testutil.True(t, s == want, "%s:\n got % x\nwant % x", tc.name, s, want)
	}
}

// TestCommandFields reads fields at the places that TestCommands has verified.
func TestCommandFields(t *testing.T) {
	s := SQE(hexBytes(t, SQESize, "0:02 1:c2 2:3412 4:d4c3b2a1 16:0807060504030201"))
	testutil.True(t, s.Opcode() == NVMRead && s.Flags() == 0xC2 && s.FUSE() == 2 && s.PSDT() == 3 &&
		s.CID() == 0x1234 && s.NSID() == 0xA1B2C3D4 &&
		s.CDW(1) == 0xA1B2C3D4, "common: % x", s)
	s = SQE{}
	s.RW().Set(1<<40, 65536, RWFUA)
	testutil.True(t, s.SLBA() == 1<<40 && s.NLB() == 65536 && s.RW().Flags() == RWFUA,
		"rw: %d %d %#x", s.SLBA(), s.NLB(), s.RW().Flags())
	s.DSM().Set(256, true)
	testutil.True(t, s.DSM().Ranges() == 256 && s.DSM().Deallocate(), "dsm")
	s = SQE{}
	s.SetCDW(11, 4)
	s.Identify().Set(CNSController, 0xABCD, 2)
	i := s.Identify()
	testutil.True(t, i.CNS() == CNSController && i.CNTID() == 0xABCD && i.CSI() == 2 &&
		i.CNSSpecific() == 4, "identify")
	s = SQE{}
	s.GetLog().Set(LogDiscovery, 16<<30, 1<<40, 0x7F, true)
	g := s.GetLog()
	testutil.True(t, g.LID() == LogDiscovery && g.Bytes() == 16<<30 && g.LPO() == 1<<40 &&
		g.LSP() == 0x7F && g.RAE() && !g.OT() && g.CSI() == 0, "get log: %+v", g)
	s.SetCDW(14, 0x01800000)
	g = s.GetLog()
	testutil.True(t, g.OT() && g.CSI() == 1, "get log: OT and CSI")
	s.SetCDW(10, 0x8000030B)
	s.SetCDW(11, 0x900)
	f := s.Features()
	testutil.True(t, f.FID() == FeatureAsyncEventConfig && f.SEL() == FeatureCapabilities &&
		f.SV() && f.Value() == 0x900, "features")
	s.Abort().Set(7, 9)
	testutil.True(t, s.Abort().SQID() == 7 && s.Abort().CID() == 9, "abort")
	s.Connect().Set(1, 2, 3, 4)
	c := s.Connect()
	testutil.True(t, s.FabricsType() == FabricsConnect && c.QID() == 1 && c.SQSIZE() == 2 &&
		c.CATTR() == 3 && c.KATO() == 4 && c.RECFMT() == 0, "connect")
	s.Property().Set(FabricsPropertySet, PropertyCSTS, 1<<40)
	p := s.Property()
	testutil.True(t, p.Size() == 4 && p.Offset() == PropertyCSTS && p.Value() == 1<<40, "property")
	s[40] = 2
	testutil.True(t, s.Property().Size() == 0, "property of a reserved size")
}

// FuzzCommand reads every field of any 64 bytes.
func FuzzCommand(f *testing.F) {
	f.Add(make([]byte, SQESize))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s SQE
		copy(s[:], b)
		n := s.GetLog().Bytes()
		testutil.MustTrue(t, n%4 == 0 && n != 0 && n <= 16<<30, "get log of %d bytes", n)
		if n := s.NLB(); n == 0 || n > 65536 {
			t.Fatalf("%d blocks", n)
		}
		if n := s.DSM().Ranges(); n < 1 || n > MaxDSMRanges {
			t.Fatalf("%d ranges", n)
		}
		if n := s.SGL1().KeyedLength(); n >= 1<<24 {
			t.Fatalf("keyed length %d", n)
		}
	})
}

func TestSGLFields(t *testing.T) {
	var d SGLDescriptor
	d.SetKeyed(SGLSubtypeInvalidate, 5, 0xFFFFFF, 0x89ABCDEF)
	testutil.True(t, d.Type() == SGLKeyedDataBlock && d.Subtype() == SGLSubtypeInvalidate &&
		d.Address() == 5 && d.KeyedLength() == 0xFFFFFF && d.Key() == 0x89ABCDEF, "keyed: % x", d)
	d.SetData(SGLLastSegment, SGLSubtypeOffset, 64, 0xFFFFFFFF)
	testutil.True(t, d.Type() == SGLLastSegment && d.Subtype() == SGLSubtypeOffset &&
		d.Address() == 64 && d.Length() == 0xFFFFFFFF, "plain: % x", d)
}

func TestCQE(t *testing.T) {
	var c CQE
	c.Fill(0x1122334455667788, 0x0102, 0x0304, ConnectInvalidParameters|DNR)
	testutil.True(t, !c.ReservedSet() && (&CQE{10: 1}).ReservedSet() &&
		(&CQE{11: 1}).ReservedSet() && (&CQE{14: 1}).ReservedSet(), "reserved bits")
	want := CQE(hexBytes(t, CQESize, "0:8877665544332211 8:0201 12:0403 14:0483"))
	testutil.True(t, c == want, "got % x, want % x", c, want)
	testutil.True(t, c.Result() == 0x1122334455667788 && c.DW0() == 0x55667788 &&
		c.SQHD() == 0x102 && c.CID() == 0x304 && c.Status() == ConnectInvalidParameters|DNR,
		"fields")
}

// TestReservationFields reads the fields that TestCommands writes, and the keys.
func TestReservationFields(t *testing.T) {
	var s SQE
	r := s.Reservation()
	r.Set(ReservationReplace, true, ExclusiveAccessAllRegistrants, ClearPTPL)
	testutil.True(t, r.Action() == ReservationReplace && r.IEKEY() && r.CPTPL() == ClearPTPL &&
		r.Type() == ExclusiveAccessAllRegistrants && r.Bytes() == 4*(0x8000060A+1), "%x", s)
	r.SetReport(64, true)
	testutil.True(t, r.EDS() && r.Bytes() == 64, "%x", s)
	var k ReservationKeys
	k.Set(0x1122334455667788, 2)
	testutil.True(t, k[0] == 0x88 && k[8] == 2 && k.Current() == 0x1122334455667788 &&
		k.Other() == 2, "%x", k)
	for typ, want := range map[ReservationType]string{
		0: "none", ExclusiveAccessAllRegistrants: "Exclusive Access - All Registrants",
		7: "reservation type 7",
	} {
		testutil.Equal(t, typ.String(), want, "%v", typ)
	}
}

func TestDSMRange(t *testing.T) {
	var r DSMRange
	r.Set(0x0102030405060708, 0x11223344)
	testutil.True(t, r == DSMRange(hexBytes(t, DSMRangeSize, "4:44332211 8:0807060504030201")),
		"got % x", r)
	testutil.True(t, r.SLBA() == 0x0102030405060708 && r.Blocks() == 0x11223344, "fields")
}

func TestCopyFields(t *testing.T) {
	var s SQE
	s.Copy().Set(0x0807060504030201, 256, CopyNamespaces, RWFUA)
	if want := SQE(hexBytes(t, SQESize, "40:0102030405060708 48:ff020040")); s != want {
		t.Errorf("command % x, want % x", s, want)
	}
	if c := s.Copy(); c.Ranges() != 256 || c.Format() != CopyNamespaces || s.RW().Flags() != RWFUA {
		t.Errorf("%d ranges, format %d, flags %#x", c.Ranges(), c.Format(), s.RW().Flags())
	}
	var r CopyRange
	r.Set(0x11223344, 0x0102030405060708, 65536)
	want := CopyRange(hexBytes(t, CopyRangeSize, "0:44332211 8:0807060504030201 16:ffff"))
	testutil.True(t, r == want, "range % x, want % x", r, want)
	testutil.True(t, r.SNSID() == 0x11223344 && r.SLBA() == 0x0102030405060708 &&
		r.Blocks() == 65536 && !r.FastOnly(), "range")
	r[23] = 0x80
	testutil.True(t, r.FastOnly(), "FCO")
}

// TestNQNs lists valid names, usual and unusual. The second list has names of real hosts and
// subsystems.
func TestNQNs(t *testing.T) {
	for _, usual := range []string{
		DiscoveryNQN,
		"nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
		"nqn.2014-08.org.nvmexpress:uuid:F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6",
		"nqn.2014-08.com.example:nvme:nvm-subsystem-sn-d78432",
		"nqn.2026-11.io.nvmf-target:disk0",
		"nqn.2026-11.io.nvmf-target:süß",
		"nqn.2026-11.io.x:" + strings.Repeat("a", NQNMaxLength-17),
	} {
		testutil.Equal(t, ValidateNQN(usual), nil, "%s", usual)
		testutil.Equal(t, UnusualNQN(usual), "", "%s is unusual", usual)
	}
	for unusual, why := range map[string]string{
		"nqn.2008-04.org.example.lan.host1": "no \":\"",
		"hostnqn":                           "does not start",
		"nqn.io-1":                          "no date",
		"nqn.nvme-subsystem-1-f81d4fae-7dec-11d0-a765-00a0c91e6bf6":            "no date",
		"nqn.2014-08.org.nvmexpress:uuid:f81d4fae7dec11d0a76500a0c91e6bf6":     "no UUID",
		"nqn.2014-08.org.nvmexpress:NVMf:uuid:f81d4fae-7dec-11d0-a765-00a0c91": "",
		"blktests-subsystem-1":                  "does not start",
		"iqn.2014-08.org.example:x":             "does not start",
		"nqn.":                                  "no date",
		"nqn.2014-8.org.example:x":              "no date",
		"nqn.2014-13.org.example:x":             "not a date",
		"nqn.yyyy-mm.org.example:x":             "not a date",
		"nqn.2014-08.:x":                        "reverse domain",
		"nqn.2014-08..example:x":                "reverse domain",
		"nqn.2014-08.-a.example:x":              "reverse domain",
		"nqn.2014-08.org.example":               "no \":\"",
		"nqn.2014-08.org.example:":              "no \":\"",
		"nqn.2014-08.org.nvmexpress:uuid:f81d4": "no UUID",
		" ":                                     "does not start",
		"..":                                    "does not start",
		strings.Repeat("ü", NQNMaxLength/2):     "does not start",
		strings.Repeat("a", NQNMaxLength):       "does not start",
	} {
		testutil.Equal(t, ValidateNQN(unusual), nil, "%s", unusual)
		if got := UnusualNQN(unusual); (got == "") != (why == "") || !strings.Contains(got, why) {
			t.Errorf("%q: %q, want %q", unusual, got, why)
		}
	}
	for bad, why := range map[string]string{
		"":                                    "empty",
		"nqn.2014-08.org.example:a\nb":        "control character",
		"nqn.2014-08.org.example:a\x7f":       "control character",
		"nqn.2014-08.org.example:a\u0085b":    "control character",
		"nqn.2014-08.org.example:\xff":        "UTF-8",
		strings.Repeat("a", NQNMaxLength+1):   "at most 223",
		strings.Repeat("ü", NQNMaxLength/2+1): "at most 223",
	} {
		if err := ValidateNQN(bad); !errors.Is(err, ErrNQN) || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v, want %q", bad, err, why)
		}
	}
}

func TestParseNQN(t *testing.T) {
	field := func(s string) *[NQNFieldSize]byte {
		var f [NQNFieldSize]byte
		copy(f[:], s)
		return &f
	}
	for _, good := range []string{"x", DiscoveryNQN, strings.Repeat("a", 223)} {
		testutil.Equal(t, testutil.Value(ParseNQN(field(good+"\x00garbage")))(t), good, "")
		var f [NQNFieldSize]byte
		PutNQN(&f, good)
		testutil.True(t, f == *field(good), "put %q", good)
	}
	for _, bad := range []string{
		"", strings.Repeat("a", 224), strings.Repeat("a", 256),
		"\xff\xfe",
	} {
		testutil.Is(t, testutil.Err(ParseNQN(field(bad))), ErrNQN, "%q", bad)
	}
	f := field(strings.Repeat("b", 256))
	PutNQN(f, strings.Repeat("a", 300))
	testutil.True(t, f[255] == 0, "no NUL at the end")
}

func FuzzNQN(f *testing.F) {
	f.Add([]byte(DiscoveryNQN))
	f.Add([]byte("nqn.2014-08.org.example:x\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var field [NQNFieldSize]byte
		copy(field[:], b)
		s, err := ParseNQN(&field)
		testutil.MustTrue(t, err != nil || s != "" && len(s) <= NQNMaxLength &&
			utf8.ValidString(s) && !strings.ContainsRune(s, 0), "accepted %q", s)
		// Every name that an operator may write can be sent by a host.
		if name := string(b); ValidateNQN(name) == nil {
			PutNQN(&field, name)
			testutil.MustEqual(t, testutil.Value(ParseNQN(&field))(t), name, "valid: %q, sent as",
				b)
			_ = UnusualNQN(name)
		}
	})
}
