package config

import (
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config/lang"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestManagedNames: different objects have different, safe file names.
func TestManagedNames(t *testing.T) {
	seen := map[string]Managed{}
	long := "nqn.2026-11.io.nvmf-target:" + strings.Repeat("é", 90)
	for _, nqn := range []string{
		"nqn.2026-11.a:b", "nqn.2026-11.a:b/c", "nqn.2026-11.a:b%2Fc", "..", ".", "../../etc/x",
		long, long + "1", long[:len(long)-2], fileName(long), "subsystem", "host-a",
		",hosts", ",listeners", "%2Chosts", "hosts", "listeners", "referrals",
	} {
		for _, m := range []Managed{
			{Subsystem: nqn},
			{Subsystem: nqn, NSID: 1},
			{Subsystem: nqn, NSID: 11},
			{Subsystem: nqn, Host: "1"},
			{Subsystem: nqn, Host: long},
			{Subsystem: nqn, Host: long + "1"},
			{Subsystem: nqn, Host: "../x"},
			{Host: nqn},
			{Listener: nqn},
			{Referral: nqn},
		} {
			file := m.File("/managed")
			other, ok := seen[file]
			testutil.True(t, !ok, "%v and %v have %s", m, other, file)
			seen[file] = m
			parts := strings.Split(file, "/")
			testutil.True(t, len(parts) == 4 && len(parts[2]) <= 200 && len(parts[3]) <= 200 &&
				!strings.HasPrefix(parts[2], ".") && !strings.HasPrefix(parts[3], "."), "%v: %s", m,
				file)
		}
	}
}

// TestManagedContent: only a JSON object is accepted, and all its text is literal.
func TestManagedContent(t *testing.T) {
	m := Managed{Subsystem: "nqn.2026-11.a:${B}", NSID: 3}
	for body, text := range map[string]string{
		`{`: "not valid JSON", `{} {}`: "not valid JSON", `{"a": &b 1}`: "not valid JSON",
		`null`: "must be a JSON object", `7`: "must be a JSON object", `{"nsid":4}`: "nsid: 4 here",
		strings.Repeat("[", 100_000): "not valid JSON",
		`{"of":{"x_file":"a"}}`:      "cannot name a file",
		`{"nsid":3,"nsid":3}`:        "nsid: given twice",
		`{"of":{"a":1,"a":2}}`:       "a: given twice. Delete",
		"{\"a\":\"\xff\"}":           "not UTF-8",
		nested(32 + 1):               "more than 32",
		nested(9_000):                "more than 32",
	} {
		_, err := m.Content([]byte(body), nil)
		testutil.Fails(t, err, text, "%.40s", body)
	}
	if got, err := m.Content([]byte(nested(32)), nil); err != nil || len(got) > 1<<20 {
		t.Errorf("%d bytes of a deep value, %v", len(got), err)
	}
	got, err := m.Content([]byte(`{"nsid":3,"a":"${C}\n- d","<<":{"e":[1,"2"]},"*f":null}`), nil)
	const want = `subsystems:
    - nqn: nqn.2026-11.a:$${B}
      namespaces:
        - nsid: 3
          a: "$${C}\n- d"
          <<:
            e:
                - 1
                - "2"
          '*f': null
`
	testutil.True(t, string(got) == want && err == nil, "%s%v", got, err)
}

// nested returns objects nested to a depth.
func nested(depth int) string {
	return strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth)
}

// TestManagedText: a file has the text that a client has sent, with any JSON escapes.
func TestManagedText(t *testing.T) {
	for sent, want := range map[string]string{
		`"\/a\/b"`: "/a/b", `"\ud83d\ude00"`: "\U0001F600", `"😀\u0000"`: "😀\x00",
		`"a\tb\n c "`:  "a\tb\n c ",
		"\"x\u2028y\"": "x\u2028y", "\"x\u0085y\"": "x\u0085y", "\"x\x7fy\"": "x\x7fy",
		`"\ufeffx"`: "\ufeffx", `"0x10"`: "0x10", `"yes"`: "yes", `"~"`: "~", `""`: "",
		"\n\"x: y #\"": "x: y #",
		`"2001-01-01"`: "2001-01-01", `"${A}"`: "$${A}",
	} {
		body := []byte("\t{\"a\"\n:" + sent + "}\n")
		content, err := Managed{Subsystem: "nqn.2026-11.a:b"}.Content(body, nil)
		var file struct{ Subsystems []struct{ A any } }
		if err == nil {
			err = yaml.Unmarshal(content, &file)
		}
		testutil.True(t, err == nil && file.Subsystems[0].A == want, "%s: %q, %v", sent, content,
			err)
	}
}

// TestManagedTouches: a request for an object may change this object and no other.
func TestManagedTouches(t *testing.T) {
	const nqn = "nqn.2026-11.a:b"
	was, is := new(Config), new(Config)
	was.Listeners = []Listener{{Name: "tcp 10.0.0.1:4420", Label: "a"}}
	is.Listeners = []Listener{{Name: "tcp 10.0.0.2:4420", Label: "a"}}
	listener := func(name string) Object { return Object{Kind: KindListener, Listener: name} }
	sub, ns := Object{Kind: KindSubsystem, NQN: nqn}, Object{Kind: KindNamespace, NQN: nqn, NSID: 1}
	entry := func(key, host string, restart bool) []lang.KeyChange {
		return []lang.KeyChange{{Key: key, New: host, Entry: true, Restart: restart}}
	}
	for _, test := range []struct {
		Managed
		Change
		want bool
	}{
		{Managed{Subsystem: nqn}, Change{Op: Add, Object: sub}, true},
		{
			Managed{Subsystem: nqn},
			Change{Op: Modify, Object: sub, Keys: entry("model", "", false)},
			true,
		},
		{Managed{Subsystem: nqn}, Change{Op: Remove, Object: ns}, true},
		{
			Managed{Subsystem: nqn},
			Change{Op: Modify, Object: ns, Keys: entry("path", "", false)},
			false,
		},
		{Managed{Subsystem: nqn + "b"}, Change{Op: Remove, Object: ns}, false},
		{Managed{Subsystem: nqn}, Change{Op: Add, Object: Object{Kind: KindListener}}, false},
		{Managed{Subsystem: nqn}, Change{Op: Add, Object: Object{Kind: KindHost, NQN: nqn}}, false},
		{Managed{Subsystem: nqn, NSID: 1}, Change{Op: Add, Object: ns}, true},
		{Managed{Subsystem: nqn, NSID: 2}, Change{Op: Add, Object: ns}, false},
		{Managed{Subsystem: nqn, NSID: 2}, Change{Op: Modify, Object: sub}, true}, // no change
		{
			Managed{Subsystem: nqn, NSID: 1},
			Change{Op: Modify, Object: sub, Keys: entry("model", "", false)},
			false,
		},
		{
			Managed{Subsystem: nqn, Host: "h"},
			Change{Op: Modify, Object: sub, Keys: entry("hosts", "h", false)},
			true,
		},
		{
			Managed{Subsystem: nqn, Host: "h"},
			Change{Op: Modify, Object: sub, Keys: entry("hosts", "g", false)},
			false,
		},
		{
			Managed{Subsystem: nqn, Host: "h"},
			Change{Op: Modify, Object: sub, Keys: entry("model", "h", false)},
			false,
		},
		{
			Managed{Subsystem: nqn, Host: "h"},
			Change{Op: Modify, Object: Object{Kind: KindFile}, Keys: entry("tcp", "", true)},
			true,
		},
		{Managed{Host: "h"}, Change{Op: Add, Object: Object{Kind: KindHost, NQN: "h"}}, true},
		{Managed{Host: "h"}, Change{Op: Add, Object: Object{Kind: KindHost, NQN: "g"}}, false},
		{Managed{Host: nqn}, Change{Op: Remove, Object: ns}, false},
		{Managed{Listener: "a"}, Change{Op: Remove, Object: listener("tcp 10.0.0.1:4420")}, true},
		{Managed{Listener: "a"}, Change{Op: Add, Object: listener("tcp 10.0.0.2:4420")}, true},
		{Managed{Listener: "a"}, Change{Op: Add, Object: listener("tcp 10.0.0.3:4420")}, false},
		{
			Managed{Listener: "a"},
			Change{Op: Modify, Object: sub, Keys: entry("listeners", "tcp 10.0.0.2:4420", false)},
			true,
		},
		{
			Managed{Listener: "a"},
			Change{Op: Modify, Object: sub, Keys: entry("listeners", "tcp 10.0.0.3:4420", false)},
			false,
		},
		{
			Managed{Referral: "r"},
			Change{Op: Add, Object: Object{Kind: KindReferral, Referral: "r"}},
			true,
		},
		{
			Managed{Referral: "r"},
			Change{Op: Add, Object: Object{Kind: KindReferral, Referral: "q"}},
			false,
		},
	} {
		testutil.Equal(t, test.Touches(test.Change, was, is), test.want, "%+v touches %v",
			test.Managed, test.Change)
	}
}

// TestManagedListenerNames: names of the same address are the same name.
func TestManagedListenerNames(t *testing.T) {
	for given, want := range map[string]Managed{
		"tcp 10.0.0.1:4420":       {Listener: "tcp 10.0.0.1:4420"},
		"rdma [FD00:0::1]:04420":  {Listener: "rdma [fd00::1]:4420"},
		"tcp fd00::1:4420":        {Listener: "tcp [fd00::1]:4420"},
		"tcp [fe80::1%eth0]:1":    {Listener: "tcp [fe80::1%eth0]:1"},
		"tcp eth0.100:4420":       {Listener: "tcp eth0.100:4420"},
		"tcp 10.0.0.0/8:4420":     {Listener: "tcp 10.0.0.0/8:4420"},
		"tcp [FD00::/16]:4420":    {Listener: "tcp fd00::/16:4420"},
		"tcp [::ffff:10.0.0.1]:1": {Listener: "tcp 10.0.0.1:1"},
		"name_1-a":                {Listener: "name_1-a"},
		"tcp":                     {Listener: "tcp"},
		"1name":                   {}, "tcp ": {}, "tcp :1": {}, "tcp a:": {},
		"tcp 10.0.0.1": {}, "tcp 10.0.0.1:0": {}, "tcp a b:1": {}, "tcp 10.0.0.256:1": {}, ":": {},
	} {
		got, err := Managed{Listener: given}.Canonical()
		testutil.True(t, (err != nil) == (want == Managed{}) && (err != nil || got == want),
			"%q: %+v, %v", given, got, err)
	}
	for given, want := range map[string]Managed{
		"tcp 10.0.0.9:8009":                      {Referral: "tcp 10.0.0.9:8009"},
		"tcp [FD00::9]:8009  a b":                {Referral: "tcp [fd00::9]:8009  a b"},
		"tcp 10.0.0.9:8009 " + nvme.DiscoveryNQN: {Referral: "tcp 10.0.0.9:8009"},
		"tcp 10.0.0.9:8009 ":                     {}, "tcp 10.0.0.9": {}, "tcp 10.0.0.9:0": {},
		"a": {},
	} {
		got, err := Managed{Referral: given}.Canonical()
		testutil.True(t, (err != nil) == (want == Managed{}) && (err != nil || got == want),
			"%q: %+v, %v", given, got, err)
	}
}

// TestManagedKeys: a file changed by hand still works, and its secrets are not shown.
func TestManagedKeys(t *testing.T) {
	m := Managed{Host: "h"}
	for file, want := range map[string]string{
		"": "map[]", "- a": "map[]", "\t": "map[]", "hosts: 7": "map[]", "hosts: []": "map[]",
		"hosts: [{nqn: h, a: 1, dhchap_key: a, tls_key_file: b}]": "map[a:1]",
		"hosts: [{nqn: h, a: .nan}]":                              "map[]",
		"hosts: [{nqn: h, a: {1: 2}}]":                            "map[]",
		"hosts: [{nqn: h, a: '$${B}'}]":                           "map[a:${B}]",
		"hosts: [{nqn: h, a: [['$${B}']]}]":                       "map[a:[[${B}]]]",
	} {
		testutil.Equal(t, fmt.Sprint(m.Keys([]byte(file))), want, "%q", file)
	}
	const file = "hosts: [{nqn: h, dhchap_key_file: a, tls_key: b}]"
	for body, want := range map[string]string{
		`{}`:                 "hosts:\n    - nqn: h\n      dhchap_key_file: a\n      tls_key: b\n",
		`{"dhchap_key":"c"}`: "hosts:\n    - nqn: h\n      dhchap_key: \"c\"\n      tls_key: b\n",
	} {
		got, err := m.Content([]byte(body), []byte(file))
		testutil.True(t, err == nil && string(got) == want, "%s: %s, %v", body, got, err)
	}
}

// TestManagedKeyFiles: after a rotation an old key in a file is still valid, and the expiry time of
// old keys stays as long as one of them is in a file.
func TestManagedKeyFiles(t *testing.T) {
	m := Managed{Host: "h", Key: "dhchap_key"}
	const first = "hosts: [{nqn: h, dhchap_key_file: a}]"
	const want = `hosts: [{nqn: h, dhchap_old_key_file: a, old_keys_until: "2200-01-01", ` +
		`dhchap_key: "b"}]` + "\n"
	file := first
	for range 2 {
		got := testutil.Value(m.Content([]byte(`{"key":"b","old_keys_until":"2200-01-01"}`),
			[]byte(file)))(t)
		testutil.Equal(t, string(got), want, "rotated")
		file = string(got)
	}
	const both = "hosts: [{nqn: h, tls_old_key: c, dhchap_old_key_file: a, old_keys_until: d}]"
	m.Key = "tls_old_key"
	got := testutil.Value(m.WithoutKey([]byte(both)))(t)
	testutil.Equal(t, string(got),
		"hosts: [{nqn: h, dhchap_old_key_file: a, old_keys_until: d}]\n", "one is left")
	m.Key = "dhchap_old_key"
	testutil.Equal(t, string(testutil.Value(m.WithoutKey(got))(t)), "hosts: [{nqn: h}]\n", "none")
}
