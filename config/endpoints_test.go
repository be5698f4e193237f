package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// parseWith parses a configuration with text appended.
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
	testutil.True(t, len(changes) == 1 && !changes[0].Restart() &&
		changes[0].Keys[0].Key == "control.roles", "a change of roles is %v", changes)
}

// TestMetricsToken: no output shows a token: no error, no change, and no format of the
// configuration.
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
	testutil.MustTrue(t, err == nil && c.Metrics.Token.Is(secret) && c.Metrics.Token != (Token{}),
		"%v", err)
	for _, wrong := range []string{
		"", " ", secret[1:], secret + "=", secret + "\n", other, strings.Repeat("a", 1<<20),
	} {
		testutil.True(t, !c.Metrics.Token.Is(wrong), "%.30q is taken for the token", wrong)
	}
	changed := testutil.Value(show(`{listen: "10.0.0.1:1", token: "` + other + `"}`))(t)
	changes := Diff(c.Settings(), changed.Settings())
	shown = append(shown, fmt.Sprint(changes))
	testutil.True(t, len(changes) == 1 && changes[0].ChangesSecret(), "the change of a token is %v",
		changes)
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
		testutil.Fails(t, testutil.Err(show(text)), want, "%s", text)
	}
	for _, text := range shown {
		testutil.True(t, !strings.Contains(text, secret[:8]) && !strings.Contains(text, other[:12]),
			"the token is shown: %s", text)
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
			testutil.True(t, c.ChangesSecret() == test.want, "%v: %v, want %v", c, !test.want,
				test.want)
		}
	}
}

// TestWebTargets: other targets need a valid URL. They change while the target runs. Targets with a
// token count as changes of secrets, and no output shows the token.
func TestWebTargets(t *testing.T) {
	const secret = "AbCdEf0123456789._~+/-=="
	shown := ""
	parse := func(target string) (*Config, error) {
		c, err := parseWith("web: {listen: '127.0.0.1:9600', targets: [" + target + "]}")
		shown += fmt.Sprintf("%v %+v %#v %v", c, c, c, err)
		return c, err
	}
	const good = `{name: b, url: "https://b.example:9600/", token: "` + secret + `", ca: /ca}`
	c := testutil.Value(parse(good + `, {name: c, url: "http://[::1]:9600"}`))(t)
	testutil.MustTrue(t, len(c.WebTargets) == 2 && c.WebTargets[0].Token() == secret &&
		c.WebTargets[1].Token == nil, "%v", c.WebTargets)
	none, _ := parseWith("web: {listen: '127.0.0.1:9600'}")
	renamed := testutil.Value(parse(strings.ReplaceAll(good, secret, secret[1:])))(t)
	for _, pair := range [][2]*Config{{none, c}, {c, renamed}, {c, none}} {
		changes := Diff(pair[0].Settings(), pair[1].Settings())
		shown += fmt.Sprint(changes)
		testutil.True(t, len(changes) == 1 && !changes[0].Restart() && changes[0].ChangesSecret() &&
			changes[0].Keys[0].Key == "web.targets", "the change is %v", changes)
	}
	const exposed = `{name: b, url: "http://10.0.0.2:9600", token: "` + secret + `"}`
	c = testutil.Value(parse(exposed))(t)
	if w := c.Warnings(); len(w) != 1 || !strings.Contains(w[0].Error(), "can read it. Use https") {
		t.Errorf("the warnings are %v", w)
	}
	for text, want := range map[string]string{
		`{name: b}`:                          "url: is missing",
		`{url: "http://10.0.0.2"}`:           "name: is missing",
		`{name: "<b>", url: "http://[::1]"}`: "is not a name for a target",
		`{name: b, url: "http://[::1]:1"}, {name: b, url: "http://[::1]:2"}`: "Give each target",
		`{name: b, url: "http://b:9600"}`:                                    "a name needs https",
		`{name: b, url: "http://u:` + secret + `@10.0.0.2"}`:                 "not the address of",
		`{name: b, url: "http://10.0.0.2/events?target=a"}`:                  "not the address of",
		`{name: b, url: "file:///etc"}`:                                      "not the address of",
		`{name: b, url: "http://10.0.0.2", ca: /ca}`:                         "without https",
		`{name: b, url: "http://[::1]", token: "` + secret + `!"}`:           "must be 16 to",
		strings.Repeat(`{name: b, url: "http://[::1]"},`, 1+MaxWebTargets):   "At most 8.",
	} {
		testutil.Fails(t, testutil.Err(parse(text)), want, "%s", text)
	}
	testutil.Fails(t, testutil.Err(parseWith("web: {targets: ["+good+"]}")),
		"without web.listen", "without listen")
	testutil.True(t, !strings.Contains(shown, secret[1:9]), "the token is shown: %s", shown)
}
