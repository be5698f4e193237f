package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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
