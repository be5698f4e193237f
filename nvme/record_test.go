package nvme

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// recordCase is a record with the size that the specification gives.
type recordCase struct {
	name  string
	typ   reflect.Type
	size  int
	zero  []byte
	again func([]byte) ([]byte, error) // parses and appends
}

// offsets are the byte offsets of the named fields of a record.
type offsets map[string]int

func record[T Record](size int) recordCase {
	return recordCase{
		fmt.Sprintf("%T", *new(T)), reflect.TypeFor[T](), size, Append(nil, new(T)),
		func(b []byte) ([]byte, error) {
			r, err := Parse[T](b)
			return Append(nil, r), err
		},
	}
}

// TestEveryRecordIsTested: every member of Record is in the table above, so its size is compared
// and it is fuzzed.
func TestEveryRecordIsTested(t *testing.T) {
	file := testutil.Value(parser.ParseFile(token.NewFileSet(), "record.go", nil, 0))(t)
	members := 0
	ast.Inspect(file.Scope.Lookup("Record").Decl.(*ast.TypeSpec).Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			members++
			if !slices.ContainsFunc(records, func(r recordCase) bool {
				return r.typ.Name() == id.Name
			}) {
				t.Errorf("%s is in Record and not in the table of this test", id.Name)
			}
		}
		return true
	})
	testutil.True(t, members == len(records), "Record has %d members, the table of this test %d",
		members, len(records))
}

func TestRecordSizes(t *testing.T) {
	for _, r := range records {
		testutil.Equal(t, len(r.zero), r.size, "%s bytes", r.name)
		testutil.Equal(t, testutil.Err(r.again(make([]byte, r.size))), nil, "%s: zeroes", r.name)
		testutil.Is(t, testutil.Err(r.again(make([]byte, r.size-1))), ErrTruncated,
			"%s: one byte short", r.name)
	}
	b := Append([]byte{1, 2}, new(SMARTLog))
	testutil.True(t, len(b) == 2+SMARTLogSize && b[1] == 2, "%d bytes after 2", len(b)-2)
}

// FuzzRecords: any bytes can be parsed, and a record parsed without an error is written back
// unchanged.
func FuzzRecords(f *testing.F) {
	for i := range records {
		f.Add(i, []byte{0xFF, 1, 2})
	}
	f.Fuzz(func(t *testing.T, which int, b []byte) {
		r := records[uint(which)%uint(len(records))]
		full := make([]byte, r.size)
		copy(full, b)
		out, err := r.again(full)
		if err == nil && !bytes.Equal(out, full) {
			t.Fatalf("%s: changed by parse and append", r.name)
		} else if err != nil && !errors.Is(err, ErrReserved) {
			t.Fatalf("%s: %v", r.name, err)
		}
		_, _ = r.again(b)
	})
}

// offsetsOf returns the offsets at which binary.Append puts the named fields.
func offsetsOf(t reflect.Type) offsets {
	m := offsets{}
	off := 0
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Name != "_" {
			m[f.Name] = off
		}
		off += binary.Size(reflect.Zero(f.Type).Interface())
	}
	return m
}

// records are all records, with the sizes of the figures of the specification.
var records = []recordCase{
	record[IdentifyController](4096), record[IdentifyNamespace](4096),
	record[IdentifyNamespaceIndependent](4096), record[ConnectData](ConnectDataSize),
	record[SupportedPages](SupportedPagesSize), record[ANAHeader](ANAHeaderSize),
	record[ANADescriptor](ANADescriptorSize), record[ErrorLogEntry](ErrorLogEntrySize),
	record[SMARTLog](SMARTLogSize), record[FirmwareLog](FirmwareLogSize),
	record[EffectsLog](EffectsLogSize), record[EnduranceGroupLog](EnduranceGroupLogSize),
	record[RotationalMediaLog](RotationalMediaLogSize),
	record[FeatureEffectsLog](FeatureEffectsSize), record[SelfTestLog](SelfTestLogSize),
	record[SelfTestResult](28), record[TelemetryHeader](TelemetryBlock),
	record[ReservationStatus](ReservationStatusSize),
	record[RegisteredController](RegisteredControllerSize),
	record[ReservationLog](ReservationLogSize), record[DiscoveryHeader](DiscoveryHeaderSize),
	record[DiscoveryEntry](DiscoveryEntrySize),
}

// TestOffsets compares the records with testdata/offsets.txt. Arrays have no offsets.
func TestOffsets(t *testing.T) {
	want := map[string]offsets{}
	for name, fields := range testutil.Sections(t, "offsets") {
		want[name] = offsets{}
		for _, f := range fields {
			field, at, _ := strings.Cut(f, "=")
			want[name][field] = testutil.Value(strconv.Atoi(at))(t)
		}
	}
	compare := func(typ reflect.Type, want offsets) {
		got := offsetsOf(typ)
		testutil.True(t, maps.Equal(got, want), "%v:\n got %v\nwant %v", typ, got, want)
	}
	for _, r := range records {
		if r.typ.Kind() == reflect.Struct {
			compare(r.typ, want[r.typ.Name()])
			delete(want, r.typ.Name())
		}
	}
	compare(reflect.TypeFor[LBAFormat](), want["LBAFormat"])
	testutil.Equal(t, len(want), 1, "records left, with LBAFormat")
	compare(reflect.TypeFor[ConnectData](), offsets{
		"HostID": ConnectDataOffsetHostID, "CNTLID": ConnectDataOffsetCNTLID,
		"SUBNQN":  ConnectDataOffsetSUBNQN,
		"HOSTNQN": ConnectDataOffsetHOSTNQN,
	})
}

func TestReservedIsReported(t *testing.T) {
	b := Append(nil, &IdentifyController{VID: 0x1234, NN: 5})
	b[105] = 1
	c, err := Parse[IdentifyController](b)
	testutil.MustTrue(t, err != nil && c.VID == 0x1234 && c.NN == 5, "%+v, %v", c.VID, err)
}

func TestText(t *testing.T) {
	var b [8]byte
	for _, tc := range []struct{ in, wire, out string }{
		{"abc", "abc     ", "abc"}, {"", "        ", ""}, {"0123456789", "01234567", "01234567"},
	} {
		PutText(b[:], tc.in)
		testutil.True(t, string(b[:]) == tc.wire && Text(b[:]) == tc.out, "%q: %q, %q", tc.in, b,
			Text(b[:]))
	}
	testutil.Equal(t, Text([]byte("x\x00\x00")), "x", "NUL padding stays")
}

func TestSupportedPages(t *testing.T) {
	var p SupportedPages
	p.Add(LogSMART, LogDiscovery)
	b := Append(nil, &p)
	testutil.True(t, bytes.Equal(b, hexBytes(t, SupportedPagesSize, "8:01 448:01")) &&
		p.Has(LogSMART) && !p.Has(LogANA), "bits")
}

func TestFeatureEffects(t *testing.T) {
	var l FeatureEffectsLog
	l[FeatureNumberOfQueues] = FeatureSupported | FeatureScopeController
	l[FeatureWriteProtect] = FeatureSupported | FeatureScopeNamespace
	b := Append(nil, &l)
	testutil.True(t, bytes.Equal(b, hexBytes(t, FeatureEffectsSize, "28:01002000 528:01001000")),
		"bits")
}

func TestUint128Sum(t *testing.T) {
	low, high := Uint128{0: 0xFF, 1: 0xFF, 2: 0xFF, 3: 0xFF, 4: 0xFF, 5: 0xFF, 6: 0xFF, 7: 0xFF},
		Uint128{8: 1}
	testutil.Equal(t, low.Add(MakeUint128(1)), high, "carry")
	testutil.Equal(t, low.Add(MakeUint128(2)).Add(high), (Uint128{0: 1, 8: 2}), "")
	for _, pair := range [][2]Uint128{
		{low, high},
		{MakeUint128(5), MakeUint128(256)},
		{high, high.Add(MakeUint128(1))},
		{low, low},
	} {
		if a, b := pair[0].Max(pair[1]), pair[1].Max(pair[0]); a != pair[1] || b != pair[1] {
			t.Errorf("the larger of %x: %x, %x", pair, a, b)
		}
	}
}

func TestUint128(t *testing.T) {
	u := MakeUint128(0x0102030405060708)
	v, ok := u.Uint64()
	testutil.True(t, v == 0x0102030405060708 && ok && u[0] == 8, "%v", u)
	if u[8] = 1; true {
		_, ok := u.Uint64()
		testutil.True(t, !ok, "overflow is not told")
	}
}

func TestDiscovery(t *testing.T) {
	e := DiscoveryEntry{
		TRTYPE: TransportRDMA, ADRFAM: AddressIPv4, SUBTYPE: SubsystemNVM,
		TREQ: TREQNotRequired | TREQNoFlowControl, PORTID: 1,
		CNTLID: CNTLIDDynamic, ASQSZ: 32, EFLAGS: EFLAGSPersistent,
	}
	e.SetAddress("10.0.0.1", "4420")
	e.SetRDMA(RDMAProviderRoCEv2, 0xFFFF)
	PutNQN(&e.SUBNQN, "nqn.x")
	b := Append(nil, &e)
	want := hexBytes(t, DiscoveryEntrySize,
		"0:01010206 4:0100ffff 8:2000 10:0200 256:6e716e2e78 768:010401 776:ffff")
	PutText(want[32:64], "4420")
	PutText(want[512:768], "10.0.0.1")
	testutil.True(t, bytes.Equal(b, want), "got % x", b)
	e.SetTCP(TCPTLS13)
	testutil.True(t, e.TCPSecurity() == TCPTLS13 && e.TSAS[8] == 0, "TCP")
}

func TestANALog(t *testing.T) {
	groups := []ANAGroup{
		{ANADescriptor{AGID: 1, CHGC: 2, ANAS: ANAStateNonOptimized}, []uint32{3, 5}},
		{ANADescriptor{AGID: 128, CHGC: 3, ANAS: ANAStateChange}, nil},
	}
	b := AppendANALog(nil, 3, groups)
	want := hexBytes(t, 16+32+8+32,
		"0:03 8:02 16:01 20:02 24:02 32:02 48:03 52:05 56:80 64:03 72:0f")
	testutil.True(t, bytes.Equal(b, want), "%x", b)
}

func TestProperties(t *testing.T) {
	c := MakeCAP(128, 30, CAPCSSNVM|CAPCSSIOSets|CAPCRMSMedia)
	if uint64(c) != 0x0800_0820_1E01_007F { // MQES 127, CQR, TO 30, CSS bits 37 and 43, CRMS bit 59
		t.Errorf("CAP %#x", uint64(c))
	}
	testutil.True(t, c.MQES() == 127 && c.TO() == 30 && c.MPSMin() == 4096, "CAP fields: %d %d %d",
		c.MQES(), c.TO(), c.MPSMin())
	c = 1 << 48
	testutil.True(t, c.MPSMin() == 8192, "smallest page size %d", c.MPSMin())
	testutil.True(t, PropertyCAP.Size() == 8 && PropertyCC.Size() == 4, "sizes")
	testutil.True(t, Version21 == 0x20100 && Version21.String() == "2.1.0", "version %s", Version21)
	testutil.True(t, CCLinux == 0x460001 && CCLinux.EN() && CCLinux.IOSQES() == 6 &&
		CCLinux.IOCQES() == 4 && CCLinux.Reserved() == 0, "CC %#x", uint32(CCLinux))
	cc := CC(0xFF<<24 | 3<<14 | 5<<11 | 9<<7 | 6<<4 | 0xE)
	testutil.True(t, !cc.EN() && cc.SHN() == 3 && cc.AMS() == 5 && cc.MPS() == 9 &&
		cc.CSS() == CSSAllIO && cc.CRIME() && cc.Reserved() == 0xFE00000E, "CC fields of %#x",
		uint32(cc))
	s := CSTSReady | CSTSShutdownComplete
	testutil.True(t, s.RDY() && !s.CFS() && s.SHST() == 2, "CSTS")
	testutil.Equal(t, CSTSFatal|CSTSShutdownOccurring|CSTSNSSRO, 0x16, "CSTS bits")
	r := MakeCRTO(5, 7)
	testutil.True(t, r == 0x70005, "CRTO %#x", uint32(r))
}

func TestConnectResult(t *testing.T) {
	r := MakeConnectResult(7)
	testutil.True(t, r == 7 && r.CNTLID() == 7, "%#x", uint32(r))
	p := InvalidInData(ConnectDataOffsetSUBNQN)
	testutil.True(t, p == 0x10100 && p.IPO() == 256 && p.InData() &&
		p.String() == "byte 256 of the data", "%#x: %v", uint32(p), p)
	p = InvalidInCommand(ConnectOffsetSQSIZE)
	testutil.True(t, p == 44 && p.IPO() == 44 && !p.InData() &&
		p.String() == "byte 44 of the command", "%#x: %v", uint32(p), p)
	// The offsets in struct nvmf_connect_command.
	testutil.True(t, ConnectOffsetRECFMT == 40 && ConnectOffsetQID == 42 &&
		ConnectOffsetSQSIZE == 44 && ConnectOffsetCATTR == 46 && ConnectOffsetKATO == 48, "offsets")
}

func TestFeatureValues(t *testing.T) {
	n := MakeNumberOfQueues(65535)
	testutil.True(t, n == 0xFFFEFFFE && n.Submission() == 65535 && n.Completion() == 65535, "%#x",
		uint32(n))
	n = MakeNumberOfQueues(1)
	testutil.True(t, n == 0 && n.Submission() == 1, "%#x", uint32(n))
}

// TestAsyncEvents compares events with the values Linux hosts act on (udev sees the last one as
// 0x70f002).
func TestAsyncEvents(t *testing.T) {
	for _, tc := range []struct {
		e    AsyncEvent
		want uint32
	}{
		{AsyncNamespaceChanged, 0x040002},
		{AsyncDiscoveryChanged, 0x70F002},
		{AsyncPersistentError, 0x010300},
	} {
		testutil.True(t, uint32(tc.e) == tc.want && uint32(tc.e.LID()) == tc.want>>16,
			"%#x, want %#x", uint32(tc.e), tc.want)
	}
	testutil.Equal(t, EventNamespaceChanged|EventANAChanged|EventDiscoveryChanged, 0x80000900,
		"mask")
}

func TestNamespaceList(t *testing.T) {
	many := make([]uint32, 1500)
	for i := range many {
		many[i] = uint32(i + 1)
	}
	for _, tc := range []struct{ in, want []uint32 }{
		{nil, nil},
		{[]uint32{1, 7, 0xFFFFFFFD}, []uint32{1, 7, 0xFFFFFFFD}},
		{many, many[:1024]},
	} {
		b := AppendNamespaceList([]byte{9}, tc.in)
		testutil.MustEqual(t, len(b), 4097, "bytes")
		want := make([]byte, IdentifyDataSize)
		for i, id := range tc.want {
			binary.LittleEndian.PutUint32(want[4*i:], id)
		}
		testutil.True(t, bytes.Equal(b[1:], want), "%d ids: % x", len(tc.want), b)
	}
}

func TestNamespaceIDs(t *testing.T) {
	uuid := bytes.Repeat([]byte{0xAB}, 16)
	b := AppendNamespaceIDs(nil, NamespaceID{IDTypeUUID, uuid},
		NamespaceID{IDTypeEUI64, []byte("12345678")}, NamespaceID{IDTypeCSI, []byte{0}})
	want := hexBytes(t, IdentifyDataSize,
		"0:03100000abababababababababababababababab 20:01080000 24:3132333435363738 32:04010000")
	testutil.MustTrue(t, bytes.Equal(b, want), "% x", b[:48])
	ids, err := ParseNamespaceIDs(b)
	testutil.MustTrue(t, err == nil && len(ids) == 3 && ids[0].Type == IDTypeUUID &&
		bytes.Equal(ids[0].ID, uuid) && ids[2].Type == IDTypeCSI, "%v, %v", ids, err)
	for name, bad := range map[string][]byte{
		"length of a UUID": {3, 15, 0, 0, 1}, "reserved": {4, 1, 1, 0, 0},
		"cut": {2, 16, 0, 0, 1, 2},
	} {
		testutil.True(t, testutil.Err(ParseNamespaceIDs(bad)) != nil, "%s: accepted", name)
	}
}

func FuzzNamespaceIDs(f *testing.F) {
	f.Add([]byte{1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Fuzz(func(t *testing.T, b []byte) {
		ids, _ := ParseNamespaceIDs(b)
		n := 0
		for _, id := range ids {
			n += 4 + len(id.ID)
		}
		testutil.MustTrue(t, n <= len(b), "%d bytes of descriptors in %d", n, len(b))
	})
}

func TestIdentifyNamespaceFormat(t *testing.T) {
	n := IdentifyNamespace{FLBAS: 0x40 | 0x10 | 3}
	n.LBAF[0x23] = LBAFormat{LBADS: 12}
	testutil.Equal(t, n.Format().LBADS, 12, "format index is not bits 6:5 and 3:0")
}

func TestStatus(t *testing.T) {
	for _, tc := range []struct {
		s    Status
		text string
		sct  uint8
		sc   uint8
		ok   bool
	}{
		{Success, "Success (0/00h)", 0, 0, true},
		{InvalidField | DNR, "Invalid Field in Command (0/02h) DNR", 0, 2, false},
		{ConnectInvalidHost, "Connect Invalid Host (1/84h)", 1, 0x84, false},
		{ANATransition, "Asymmetric Access Transition (3/03h)", 3, 3, false},
		{0x7FF, "status (7/FFh)", 7, 0xFF, false},
	} {
		testutil.True(t, tc.s.String() == tc.text && tc.s.SCT() == tc.sct && tc.s.SC() == tc.sc &&
			tc.s.OK() == tc.ok && tc.s.Error() == tc.text, "%#x: %q %d %#x %t", uint16(tc.s), tc.s,
			tc.s.SCT(), tc.s.SC(), tc.s.OK())
	}
	testutil.Equal(t, (InvalidOpcode | DNR | 1<<13).Code(), InvalidOpcode, "Code keeps flags")
}

// TestEveryStatusHasAName keeps logs readable.
func TestEveryStatusHasAName(t *testing.T) {
	for _, s := range []Status{
		Success, InvalidOpcode, InvalidField, CommandIDConflict, DataTransferError,
		AbortedPowerLoss, InternalError, AbortRequested,
		AbortedSQDeletion, AbortedFailedFused, AbortedMissingFused, InvalidNamespaceOrFormat,
		CommandSequenceError,
		InvalidSGLSegment, InvalidSGLCount, DataSGLLengthInvalid, SGLTypeInvalid, SGLOffsetInvalid,
		HostIDInconsistent, KATOExpired, AbortedPreempt,
		KATOInvalid, TransientTransportError, NamespaceWriteProtected, CommandInterrupted,
		LBAOutOfRange, CapacityExceeded,
		NamespaceNotReady, ReservationConflict, InvalidQueueIdentifier, AbortLimitExceeded,
		AERLimitExceeded, InvalidLogPage,
		FeatureNotSaveable, FeatureNotChangeable, SelfTestInProgress, CommandSetsRejected,
		ConnectIncompatibleFormat, ConnectControllerBusy,
		ConnectInvalidParameters,
		ConnectRestartDiscovery, ConnectInvalidHost, InvalidQueueType, DiscoveryRestart,
		AuthenticationRequired, WriteFault, UnrecoveredReadError,
		CompareFailure, InternalPathError, ANAPersistentLoss, ANAInaccessible, ANATransition,
		ControllerPathingError,
		HostPathingError, CommandAbortedByHost,
	} {
		testutil.True(t, statusNames[s] != "", "%#x has no name", uint16(s))
	}
}

func TestTransportType(t *testing.T) {
	for want, tt := range map[string]TransportType{
		"rdma": TransportRDMA, "fc": TransportFC,
		"tcp": TransportTCP, "loop": TransportLoop, "unknown": 9,
	} {
		testutil.Equal(t, tt.String(), want, "%d: %s", tt, tt)
	}
}

func TestAuthCommand(t *testing.T) {
	var s SQE
	s.Auth().Set(FabricsAuthSend, 0x11223344)
	want := SQE{0: 0x7F, 4: 5, 41: 1, 42: 1, 43: 0xE9, 44: 0x44, 45: 0x33, 46: 0x22, 47: 0x11}
	testutil.True(t, s == want && s.Auth().Length() == 0x11223344 && s.Auth().Protocol(), "% x", s)
	for _, i := range []int{41, 42, 43} {
		other := s
		other[i]++
		testutil.True(t, !other.Auth().Protocol(), "byte %d is not looked at", i)
	}
}
