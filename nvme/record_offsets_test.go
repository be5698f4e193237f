package nvme

import (
	"encoding/binary"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
		if string(b[:]) != tc.wire || Text(b[:]) != tc.out {
			t.Errorf("%q: %q, %q", tc.in, b, Text(b[:]))
		}
	}
	testutil.Equal(t, Text([]byte("x\x00\x00")), "x", "NUL padding stays")
}
