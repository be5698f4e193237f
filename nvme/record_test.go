package nvme

import (
	"bytes"
	"errors"
	"testing"
)

// record is what every large record of the control path can do.
type record interface{ Append(b []byte) []byte }

// records lists the fixed records with the size the specification gives and their parser.
var records = []struct {
	name  string
	size  int
	zero  record
	parse func([]byte) (record, error)
}{
	{"IdentifyController", 4096, new(IdentifyController), parser(ParseIdentifyController)},
	{"IdentifyNamespace", 4096, new(IdentifyNamespace), parser(ParseIdentifyNamespace)},
	{
		"IdentifyNamespaceIndependent", 4096, new(IdentifyNamespaceIndependent),
		parser(ParseIdentifyNamespaceIndependent),
	},
	{"IdentifyNamespaceNVM", 4096, new(IdentifyNamespaceNVM), parser(ParseIdentifyNamespaceNVM)},
	{"IdentifyControllerNVM", 4096, new(IdentifyControllerNVM), parser(ParseIdentifyControllerNVM)},
	{"ConnectData", ConnectDataSize, new(ConnectData), parser(ParseConnectData)},
	{"SupportedPages", SupportedPagesSize, new(SupportedPages), parser(ParseSupportedPages)},
	{"ErrorLogEntry", ErrorLogEntrySize, new(ErrorLogEntry), parser(ParseErrorLogEntry)},
	{"SMARTLog", SMARTLogSize, new(SMARTLog), parser(ParseSMARTLog)},
	{"FirmwareLog", FirmwareLogSize, new(FirmwareLog), parser(ParseFirmwareLog)},
	{"EffectsLog", EffectsLogSize, new(EffectsLog), parser(ParseEffectsLog)},
	{
		"FeatureEffectsLog", FeatureEffectsSize, new(FeatureEffectsLog),
		parser(ParseFeatureEffectsLog),
	},
	{"DiscoveryHeader", DiscoveryHeaderSize, new(DiscoveryHeader), parser(ParseDiscoveryHeader)},
	{"DiscoveryEntry", DiscoveryEntrySize, new(DiscoveryEntry), parser(ParseDiscoveryEntry)},
}

func parser[T record](f func([]byte) (T, error)) func([]byte) (record, error) {
	return func(b []byte) (record, error) { r, err := f(b); return r, err }
}

func TestRecordSizes(t *testing.T) {
	for _, r := range records {
		if b := r.zero.Append([]byte{1, 2}); len(b) != r.size+2 {
			t.Errorf("%s: %d bytes, want %d", r.name, len(b)-2, r.size)
		}
		if _, err := r.parse(make([]byte, r.size)); err != nil {
			t.Errorf("%s: zeroes: %v", r.name, err)
		}
		if r.name == "DiscoveryHeader" {
			r.size = 18 // the rest may be missing
		}
		if _, err := r.parse(make([]byte, r.size-1)); !errors.Is(err, ErrTruncated) {
			t.Errorf("%s: one byte short: %v", r.name, err)
		}
	}
}

// FuzzRecords checks that each parser takes any bytes, and that what it accepts without complaint
// is written back unchanged.
func FuzzRecords(f *testing.F) {
	for i := range records {
		f.Add(i, []byte{0xFF, 1, 2})
	}
	f.Fuzz(func(t *testing.T, which int, b []byte) {
		r := records[uint(which)%uint(len(records))]
		full := make([]byte, r.size)
		copy(full, b)
		v, err := r.parse(full)
		if out := v.Append(nil); err == nil && !bytes.Equal(out, full) {
			t.Fatalf("%s: changed by parse and append", r.name)
		} else if err != nil && !errors.Is(err, ErrReserved) {
			t.Fatalf("%s: %v", r.name, err)
		}
		_, _ = r.parse(b)
	})
}
