package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

const testKey = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"

// programFile is a configuration with a program that prints the key of a host.
func programFile(command, more string) string {
	return fmt.Sprintf(`
listeners: [{transport: tcp, address: 127.0.0.1}]
hosts:
  - {nqn: nqn.2026-11.io.nvmf-target:host, dhchap_key_command: %s}
%s`, command, more)
}

func subsystemOf(host string) string {
	return "subsystems: [{nqn: 'nqn.2026-11.io.nvmf-target:a', hosts: ['" + host +
		"'], namespaces: [{nsid: 1, backend: ram, size: 1MiB}]}]\n"
}

// TestProgramKey: a program without privileges and with a bare environment prints the key.
func TestProgramKey(t *testing.T) {
	script := `grep -Eq '^NoNewPrivs:\s*1' /proc/self/status &&
[ -z \"$(grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status | grep -v 0000000000000000)\" ] &&
[ \"$(env | cut -d= -f1 | sort | tr '\n' ' ')\" = 'CREDENTIALS_DIRECTORY PATH PWD ' ] || env >&2
echo $1 | tee /dev/null`
	script = strings.ReplaceAll(script, "\n", "\\n")
	script = strings.ReplaceAll(script, "\\s", "\\\\s")
	text := programFile(`[/bin/sh, -ec, "`+script+`", sh, "${SECRET}"]`,
		subsystemOf("nqn.2026-11.io.nvmf-target:host"))
	c := testutil.Value(Parse("test.yaml", []byte(text), []string{
		"SECRET=" + testKey, "CREDENTIALS_DIRECTORY=/run/credentials/x", "HIDDEN=1",
	}, testBackends))(t)
	k := c.Hosts[0].Key
	testutil.True(t, k != nil && k.Reveal() == testKey, "another key")
}

// TestProgramProblems: errors are reported at the key. They have the standard error of the program,
// without its standard output.
func TestProgramProblems(t *testing.T) {
	const form = "must be a list of the path of a program"
	for command, want := range map[string]string{
		`[/bin/sh, -c, 'echo ` + testKey + `; echo "no such secret" >&2; exit 3']`: "hosts[0]." +
			`dhchap_key: /bin/sh failed: exit status 3: "no such secret\n"`,
		`[/bin/sh, -c, 'echo "read ` + testKey + `" >&2; exit 1']`: "hosts[0].dhchap_key: " +
			`/bin/sh failed: exit status 1: "read (hidden)\n"`,
		`[/bin/sh, -xc, 'echo ` + testKey + `; exit 1']`:                  `1: "+ echo (hidden)\n+ exit 1\n"`,
		"[/bin/sh, -c, 'echo open-sesame; echo open-sesame >&2; exit 1']": `1: "(hidden)\n"`,
		"[/bin/sh, -c, 'yes x | head -c 250 >&2; echo " + testKey + " >&2; exit 1']": `x\n` +
			`(hidde"`,
		"[/bin/sh, -c, 'head -c 100000 /dev/zero >&2; exit 1']": `failed: exit status 1: "\x00`,
		"[/bin/sh, -c, 'echo " + testKey + "; kill -9 $$']":     "failed: signal: killed",
		"[/bin/sh, -c, 'yes " + testKey + "']":                  "prints more than 4KiB",
		"[/nowhere/key]":                                        "no such file or directory",
		"[key]":                                                 form,
		"/bin/true":                                             form,
		"[]":                                                    form,
		"['${NONE}']":                                           "NONE is not set",
		"[/bin/true]":                                           "dhchap_key: ",
		"[/bin/true], dhchap_key_file: a":                       "given twice",
	} {
		_, err := Parse("test.yaml", []byte(programFile(command, "")), nil, testBackends)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, not %s", command, err, want)
		} else if strings.Contains(strings.ReplaceAll(err.Error(), command, ""), testKey[:20]) ||
			len(err.Error()) > 3000 {
			t.Errorf("%s: %v", command, err)
		}
	}
}

// TestProgramsAndEdits: a full load runs each program once, and an edit reuses the output. Files
// that the control interface writes cannot name a program.
func TestProgramsAndEdits(t *testing.T) {
	const nqn = "nqn.2026-11.io.nvmf-target:host"
	dir := write(t, map[string]string{"runs": ""})
	file, runs := filepath.Join(dir, "nvmf.yaml"), filepath.Join(dir, "runs")
	managedDir := filepath.Join(dir, "managed")
	command := "[/bin/sh, -c, 'echo x >>" + runs + "; echo " + testKey + "']"
	other := "\n  - {nqn: " + nqn + "2, dhchap_key_command: " + command + "}"
	text := programFile(command+"}"+strings.TrimSuffix(other, "}"), "managed: "+managedDir+"\n")
	testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
	load := func(options ...Option) (*Config, error) {
		return Load(file, nil, testBackends, options...)
	}
	m := Managed{Subsystem: "nqn.2026-11.io.nvmf-target:a"}
	content, err := m.Content(nil, nil)
	testutil.Must(t, err)
	edit := Edit{Path: m.File(managedDir), Content: content}
	var c *Config
	for i, want := range []string{"x\n", "x\n", "x\nx\n", "x\nx\n"} {
		if i%2 == 0 {
			c, err = load()
		} else {
			c, err = load(edit, c.Printed())
		}
		testutil.MustTrue(t, err == nil && c.Hosts[1].Key.Reveal() == testKey, "%v", err)
		got, _ := os.ReadFile(runs)
		testutil.True(t, string(got) == want, "load %d: %q", i, got)
	}
	_, err = m.Content([]byte(`{"serial_command": ["/bin/true"]}`), nil)
	testutil.Fails(t, err, "or a program", "")
	edit.Content = []byte("hosts: [{nqn: " + nqn + "3, dhchap_key_command: [/bin/true]}]")
	_, err = load(edit)
	testutil.Fails(t, err, "managed directory cannot name a program", "")
}

// TestPrintedInUse: an edit reuses the program output of the configuration in use, even if another
// load, such as a plan, has got other output since.
func TestPrintedInUse(t *testing.T) {
	dir := write(t, map[string]string{"key": testKey})
	file, key := filepath.Join(dir, "nvmf.yaml"), filepath.Join(dir, "key")
	managed := filepath.Join(dir, "managed")
	text := programFile("[/bin/cat, "+key+"]", "managed: "+managed+"\n")
	testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
	m := Managed{Subsystem: "nqn.2026-11.io.nvmf-target:a"}
	content := testutil.Value(m.Content(nil, nil))(t)
	edit := Edit{Path: m.File(managed), Content: content}
	load := func(want string, options ...Option) *Config {
		t.Helper()
		c, err := Load(file, nil, testBackends, options...)
		testutil.MustTrue(t, err == nil && c.Hosts[0].Key.Reveal() == want, "%v, or another key",
			err)
		return c
	}
	inUse := load(testKey)
	next := testutil.Value(auth.NewKey(32, auth.SHA256))(t)
	testutil.Secret(t, next.Reveal())
	other := next.Reveal()
	testutil.Must(t, os.WriteFile(key, []byte(other), 0o600))
	looked := load(other)
	inUse = load(testKey, edit, inUse.Printed())
	load(testKey, edit, inUse.Printed())
	testutil.Must(t, os.Remove(key))
	testutil.True(t, testutil.Err(Load(file, nil, testBackends)) != nil, "no error of the program")
	load(testKey, edit, inUse.Printed())
	load(other, edit, looked.Printed())
}
