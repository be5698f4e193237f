package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

// parseWith parses a configuration with more keys at its end.
func parseWith(text string) (*Config, error) {
	return Parse("/etc/a.yaml", []byte(`
listeners: [{transport: tcp, address: 10.0.0.1}]
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:disk0
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: 1GiB}]
`+text+"\n"), nil, testBackends)
}

// TestRolesNeedNoRestart: roles change while the target runs.
func TestRolesNeedNoRestart(t *testing.T) {
	with, _ := parseWith(`control: {roles: [{user: backup, role: admin}]}`)
	without, _ := parseWith("")
	changes := Diff(without.Settings(), with.Settings())
	if len(changes) != 1 || changes[0].Restart() || changes[0].Keys[0].Key != "control.roles" {
		t.Errorf("a change of roles is %v", changes)
	}
}

// TestMetricsToken: a token is in no output, of which there are errors, changes and the
// configuration itself.
func TestMetricsToken(t *testing.T) {
	const secret, other = "AbCdEf0123456789._~+/-==", "0123456789012345678901234567890123456789"
	dir := t.TempDir()
	shown := []string{}
	show := func(text string) (*Config, error) {
		c, err := parseWith("metrics: " + text)
		shown = append(shown, fmt.Sprintf("%v %+v %#v %v", c, c, c, err))
		return c, err
	}
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		testutil.Must(t, os.WriteFile(path, []byte(content), mode))
		return path
	}
	good := file("good", secret+"\n", 0o600)
	c, err := show(`{listen: "10.0.0.1:1", token_file: ` + good + `}`)
	if err != nil || !c.Metrics.Token.Is(secret) || c.Metrics.Token == (Token{}) {
		t.Fatal(err)
	}
	for _, wrong := range []string{
		"", " ", secret[1:], secret + "=", secret + "\n", other, strings.Repeat("a", 1<<20),
	} {
		if c.Metrics.Token.Is(wrong) {
			t.Errorf("%.30q is taken for the token", wrong)
		}
	}
	changed := testutil.Value(show(`{listen: "10.0.0.1:1", token: "` + other + `"}`))(t)
	changes := Diff(c.Settings(), changed.Settings())
	shown = append(shown, fmt.Sprint(changes))
	if len(changes) != 1 || !changes[0].ChangesSecret() {
		t.Errorf("the change of a token is %v", changes)
	}
	for text, want := range map[string]string{
		`{listen: "10.0.0.1:1", token: ` + other + `}`:                                 "must be 16 to",
		`{listen: "10.0.0.1:1", token: [` + secret + `]}`:                              "a list",
		`{listen: "10.0.0.1:1", token: "` + secret + ` "}`:                             "must be 16 to",
		`{listen: "10.0.0.1:1", token: short}`:                                         "must be 16 to",
		`{token: "` + secret + `"}`:                                                    "without metrics.listen",
		`{listen: "10.0.0.1:1", token_file: ` + file("open", secret, 0o644) + `}`:      "everybody can read",
		`{listen: "10.0.0.1:1", token_file: ` + file("two", secret+"\na", 0o600) + `}`: "must be 16 to",
		`{listen: "10.0.0.1:1", token_file: ` + file("empty", "", 0o600) + `}`:         "must be 16 to",
		`{listen: "10.0.0.1:1", certificate: /c}`:                                      "certificate and key",
		`{listen: "10.0.0.1:4420"}`:                                                    "is used already",
	} {
		if _, err := show(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	for _, text := range shown {
		if strings.Contains(text, secret[:8]) || strings.Contains(text, other[:12]) {
			t.Errorf("the token is shown: %s", text)
		}
	}
}

// TestChangesSecret: keys of hosts that are added, replaced or removed are changes of secrets.
func TestChangesSecret(t *testing.T) {
	host := func(key string) *Config {
		t.Helper()
		c := testutil.Value(parseWith(`hosts: [{nqn: "nqn.2026-11.a:h"` + key + `}]`))(t)
		return c
	}
	none, _ := parseWith("")
	plain, limited := host(""), host(", limits: {iops: 7}")
	one := host(`, dhchap_key: "DHHC-1:00:s3Us8MCF9p+Z5kZmGLN6QPGFTIM8BxUSawA6MaIXcfGxhT4h:"`)
	two := host(`, dhchap_key: "DHHC-1:00:QXIm1fT3S6tOEXhcxljdrZNrb21x/4y0dJtoVXstBQQrKHbh:"`)
	for _, test := range []struct {
		from, to *Config
		want     bool
	}{
		{none, one, true},
		{one, two, true},
		{two, plain, true},
		{two, none, true},
		{none, limited, false},
		{limited, plain, false},
		{limited, none, false},
	} {
		for _, c := range Diff(test.from.Settings(), test.to.Settings()) {
			if c.ChangesSecret() != test.want {
				t.Errorf("%v: %v, want %v", c, !test.want, test.want)
			}
		}
	}
}
