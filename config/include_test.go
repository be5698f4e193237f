package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// load writes files, each below a line "== NAME", and loads nvmf.yaml, the first one.
func load(t *testing.T, files string, environ ...string) (*Config, error) {
	t.Helper()
	t.Chdir(t.TempDir())
	for i, file := range strings.Split("\nnvmf.yaml\n"+files, "\n== ") {
		name, text, _ := strings.Cut(strings.TrimPrefix(file, "\n"), "\n")
		if i == 0 {
			name = "nvmf.yaml"
		}
		testutil.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testutil.Must(t, os.WriteFile(name, []byte(text+"\n"), 0o644))
	}
	return Load("nvmf.yaml", environ, testBackends)
}

// TestPlaceInIncludedFile: a problem found later is reported at its place in the included file.
func TestPlaceInIncludedFile(t *testing.T) {
	c := testutil.Value(load(t, "include: [a.yaml]"+minimal+"== a.yaml\nlog:\n  level: info\n"))(t)
	testutil.Equal(t, c.Problem("log.level", "is odd", "").Error(),
		"a.yaml:2:10: log.level: is odd", "")
}

// TestIncludeIsBounded: several files cannot make the parser do more work than one file, and only
// regular files are opened.
func TestIncludeIsBounded(t *testing.T) {
	var many strings.Builder
	for i := range 1025 {
		fmt.Fprintf(&many, "== conf.d/%d.yaml\nlog: {}\n", i)
	}
	aliases := "subsystems: [" + strings.Repeat("*s, ", 1000) + "]\n"
	for name, test := range map[string]struct{ files, want string }{
		"files": {many.String(), "more than 1024 files or 4MiB"},
		"bytes": {
			"== conf.d/a.yaml\n" + strings.Repeat("#\n", 4<<20/2),
			"more than 1024 files or 4MiB",
		},
		"aliases": {
			"== conf.d/a.yaml\nx: &s {nqn: nqn.2026-11.io.nvmf-target:disk0, hosts: [" +
				strings.Repeat("h, ", 1000) + "]}\n" + aliases,
			"more than 100000 values",
		},
	} {
		_, err := load(t, "include: [conf.d/*]"+minimal+test.files)
		testutil.True(t, err != nil && strings.Contains(err.Error(), test.want) &&
			len(err.Error()) <= 1000, "%s: %.1000v", name, err)
	}
	t.Chdir(t.TempDir())
	testutil.Must(t, syscall.Mkfifo("pipe", 0o600))
	_, err := Parse("nvmf.yaml", []byte("include: [pipe]"+minimal), nil, testBackends)
	testutil.Fails(t, err, "open pipe: not a regular file", "")
	// A reload would wait for a writer without end, and a stop for the reload.
	_, err = Load("pipe", nil, testBackends)
	testutil.Fails(t, err, "open pipe: not a regular file", "")
	// Commands may wait: nvmf-target check <(generate).
	r, w, err := os.Pipe()
	testutil.Must(t, err)
	defer r.Close()
	_, err = w.WriteString(minimal)
	testutil.Must(t, errors.Join(err, w.Close()))
	_, err = LoadAll(fmt.Sprintf("/dev/fd/%d", r.Fd()), nil, testBackends)
	testutil.Check(t, err)
}

// TestVariablesAreBounded: variables do not make the configuration larger than a file may be.
func TestVariablesAreBounded(t *testing.T) {
	big := "BIG=" + strings.Repeat("x", 100_000)
	text := minimal + "tcp: {congestion_control: \"" + strings.Repeat("${BIG}", 100) + "\"}\n"
	_, err := parse(t, text, big)
	testutil.Fails(t, err, "larger than 4MiB", "")
}

// write writes files to a new directory and returns it.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// TestFileKeys: values come from files and are literal. A path is relative to the file that names
// it. Entries of subsystems are merged even if the NQN is in a file.
func TestFileKeys(t *testing.T) {
	const uuid = "11111111-1111-1111-1111-111111111111"
	dir := write(t, map[string]string{
		"name": "nqn.2026-11.io.nvmf-target:a\n", "serial": "${NAME}\r\n", "empty": "",
		"a.yaml": "subsystems: [{nqn: 'nqn.2026-11.io.nvmf-target:a', namespaces: " +
			"[{nsid: 2, backend: ram, size: 1MiB, uuid_file: '${DIR}/uuid'}]}]",
		"uuid": uuid,
		"nvmf.yaml": `
include: [a.yaml]
listeners: [{transport: tcp, address: 127.0.0.1}]
subsystems:
  - {nqn_file: name, serial_file: serial, allow_any_host: true}
`,
	})
	c := testutil.Value(
		Load(filepath.Join(dir, "nvmf.yaml"), []string{"DIR=" + dir}, testBackends))(t)
	s := c.Subsystems[0]
	testutil.True(t, len(c.Subsystems) == 1 && s.NQN == "nqn.2026-11.io.nvmf-target:a" &&
		s.Serial == "${NAME}" && s.Namespaces[0].UUID.String() == uuid, "%+v", c.Subsystems)
}

// TestFileKeyProblems: errors are reported at the key that names the file.
func TestFileKeyProblems(t *testing.T) {
	dir := write(t, map[string]string{"large": strings.Repeat("x", 4<<10+1), "uuid": "none\n"})
	for keys, text := range map[string]string{
		"serial_file: absent":          "serial: stat " + dir + "/absent: no such file",
		"serial_file: .":               "not a regular file",
		"serial_file: large":           "is larger than 4KiB",
		"serial_file: 7":               "must be the path of a file, not the number 7",
		"serial_file: [a]":             "must be the path of a file, not a list",
		"serial_file: '${NONE}'":       "NONE is not set",
		"serial_file: uuid, serial: a": "serial: given twice",
		"serial: a, serial_file: uuid": "serial_file: given twice",
		"allow_any_host_file: uuid":    "unknown key",
		"nqn_file: uuid, serial: a":    "nqn_file: given twice",
		"max_io_queues_file: uuid":     "unknown key",
	} {
		file := filepath.Join(dir, "nvmf.yaml")
		_, err := Parse(file, []byte(`
listeners: [{transport: tcp, address: 127.0.0.1}]
subsystems:
  - {nqn: nqn.2026-11.io.nvmf-target:a, allow_any_host: true, `+keys+`,
     namespaces: [{nsid: 1, backend: ram, size: 1MiB}]}
`), nil, testBackends)
		testutil.True(t, err != nil && strings.Contains(err.Error(), text) &&
			strings.Contains(err.Error(), "nvmf.yaml:4:"), "%s: %v", keys, err)
	}
}

// TestKeyAsFileName: a key in place of a file name is not repeated in the error.
func TestKeyAsFileName(t *testing.T) {
	const secret = "ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n"
	dir := write(t, map[string]string{"nvmf.yaml": `
listeners: [{transport: tcp, address: 127.0.0.1}]
hosts:
  - nqn: nqn.2026-11.io.nvmf-target:host
    dhchap_key_file: "DHHC-1:00:` + secret + `:"
`})
	_, err := Load(filepath.Join(dir, "nvmf.yaml"), nil, testBackends)
	testutil.True(t, err != nil && strings.Contains(err.Error(), "path of a file, not a key") &&
		!strings.Contains(err.Error(), secret[:8]), "%v", err)
}

// TestTokenTiming: the time of a comparison does not tell where a token differs.
func TestTokenTiming(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", 4)
	token := newToken(text)
	others := [2]string{"x" + text[1:], text[:len(text)-1] + "x"}
	testutil.MustTrue(t, token.Is(text), "the right token is refused")
	testutil.SameTime(t, 100_000, func(class int) func() {
		return func() {
			for range 10 {
				testutil.True(t, !token.Is(others[class]), "a wrong token is taken")
			}
		}
	})
}

// TestUntil: a key counts until the end of a day, or until a time.
func TestUntil(t *testing.T) {
	for word, want := range map[string]string{
		"2027-01-31":                "2027-02-01T00:00:00Z",
		"2027-12-31":                "2028-01-01T00:00:00Z",
		"2027-01-31T18:00:00+01:00": "2027-01-31T17:00:00Z",
	} {
		text := strings.Replace(minimal, "listeners:", `hosts:
- nqn: nqn.2026-11.io.example:a
  dhchap_key: "DHHC-1:00:dYaw096krZ260qdUC32Qt6MOOJ29Txf41rRRmsWeFd44CmkR:"
  dhchap_old_key: "DHHC-1:00:AcRa6V6AE/2EyOl+dzVY52vag0nwBrNtSp8o3w+afpRQGr+p:"
  old_keys_until: `+word+`
  keys_until: `+word+`
listeners:`, 1)
		c := testutil.Value(parse(t, text))(t)
		for _, got := range []time.Time{c.Hosts[0].OldUntil, c.Hosts[0].Until} {
			testutil.Equal(t, got.UTC().Format(time.RFC3339), want, "%s: %v", word, got)
		}
	}
}
