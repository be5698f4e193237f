package nvme

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
