package config

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
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

// TestManagedContent: a request is text, and bounded. A sequence has the rest.
func TestManagedContent(t *testing.T) {
	m := Managed{Subsystem: "nqn.2026-11.a:b"}
	for body, text := range map[string]string{
		strings.Repeat("[", 100_000): "not valid JSON", "{\"a\":\"\xff\"}": "not UTF-8",
		nested(32 + 1): "more than 32", nested(9_000): "more than 32",
	} {
		testutil.Fails(t, testutil.Err(m.Content([]byte(body), nil)), text, "%.40s", body)
	}
	if got, err := m.Content([]byte(nested(32)), nil); err != nil || len(got) > 1<<20 {
		t.Errorf("%d bytes of a deep value, %v", len(got), err)
	}
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
