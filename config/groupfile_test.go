package config

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestGroupFile: the file of a gateway has the shared objects with its own settings. Settings of
// single gateways, secrets, and files and programs are refused.
func TestGroupFile(t *testing.T) {
	g := Group{Conf: "/c", User: "u", Keyring: "/k", CNTLIDMin: 5, CNTLIDMax: 9}
	file := testutil.Value(g.File(`{"hosts": [{"nqn": "nqn.2026-11.x:h", "dhchap_key_file": "/key"}],
		"subsystems": [{"nqn": "nqn.2026-11.x:s", "serial": "${A}", "namespaces": [
			{"nsid": 1, "backend": "rbd", "image": "p/i"}]}]}`, "12 a"))(t)
	testutil.Equal(t, string(file), versionLine+`12 a
hosts:
    - nqn: "nqn.2026-11.x:h"
      dhchap_key_file: "/key"
subsystems:
    - nqn: "nqn.2026-11.x:s"
      serial: "$${A}"
      namespaces:
        - nsid: 1
          backend: "rbd"
          image: "p/i"
          ceph:
            conf: /c
            user: u
            keyring: /k
      cntlid_min: 5
      cntlid_max: 9
`, "")
	testutil.Equal(t, GroupVersion(file), "12 a", "its version")
	testutil.Equal(t, GroupVersion([]byte("subsystems: []")), "", "of another file")
	const sub = `{"subsystems": [{"nqn": "s", `
	for text, want := range map[string]string{
		`[]`:                                  "must be a JSON object",
		`{}`:                                  "subsystems: is missing",
		`{"subsystems": 1}`:                   "",
		`{"subsystems": [1]}`:                 "",
		`{"subsystems": [], "listeners": []}`: "listeners: is not shared",
		`{"subsystems": [], "hosts": [{"tls_key": "k"}]}`:          "hosts[0].tls_key: secrets are not",
		`{"subsystems": [], "hosts": [{"tls_key_file": "k"}]}`:     "not an absolute path",
		`{"subsystems": [], "hosts": [{"dhchap_key_command": 1}]}`: "cannot name a file to read, or",
		`{"subsystems": [], "hosts": [{"nqn_file": "/k"}]}`:        "cannot name a file to read, or",
		sub + `"cntlid_min": 1}]}`:                                 "subsystems[0].cntlid_min: is a setting",
		sub + `"namespaces": [{"backend": "ram"}]}]}`:              "namespaces[0].backend: is not rbd",
		sub + `"namespaces": [{"ceph": {}}]}]}`:                    "namespaces[0].ceph: is a setting",
		sub + `"namespaces": 1}]}`:                                 "",
	} {
		err := testutil.Err(g.File(text, "1"))
		testutil.True(t, want == "" && err == nil || err != nil && want != "" &&
			strings.Contains(err.Error(), want), "%s: %v, want %q", text, err, want)
	}
}

// TestSealed: secrets of hosts are encrypted with the key of the group. One that was changed, moved
// to another host or encrypted with another key is refused, and a gateway without the key says so.
func TestSealed(t *testing.T) {
	key := func(text string) *Group {
		return &Group{CNTLIDMin: 1, CNTLIDMax: 2, Key: func() string { return text }}
	}
	g := key("0123456789abcdef")
	const secret = `DHHC-1:00:${A}"<`
	plain := testutil.Value(json.Marshal(map[string]any{
		"hosts": []any{
			map[string]string{"nqn": "nqn.2026-11.x:${h}", "dhchap_key": secret, "tls_key": "t"},
			map[string]string{"nqn": "nqn.2026-11.x:i"},
		},
		"subsystems": []any{}, "n": json.Number("12345678901234567890"),
	}))(t)
	text := g.Seal(string(plain))
	testutil.True(t, !strings.Contains(text, "DHHC") && strings.Count(text, sealed) == 2 &&
		strings.Contains(text, "12345678901234567890"), "%s", text)
	testutil.Equal(t, g.Seal(text), text, "a text that is sealed already")
	text = strings.Replace(text, `"n":12345678901234567890,`, "", 1)
	file := string(testutil.Value(g.File(text, "1"))(t))
	testutil.True(t, strings.Contains(file, `dhchap_key: DHHC-1:00:$${A}"<`) &&
		strings.Contains(file, "tls_key: t\n"), "%s", file)
	at := strings.Index(text, sealed) + len(sealed)
	for name, tc := range map[string]struct {
		g          *Group
		text, want string
	}{
		"plain":       {g, `{"subsystems": [], "hosts": [{"tls_key": "t"}]}`, "are not kept"},
		"no key":      {new(Group), text, "dhchap_key: is encrypted. Set group.key"},
		"another key": {key("0123456789abcdeF"), text, "hosts[0].dhchap_key: cannot be decrypted"},
		"changed":     {g, text[:at] + "AAAA" + text[at+4:], "cannot be decrypted"},
		"no base64":   {g, text[:at] + "%" + text[at+1:], "cannot be decrypted"},
		"short": {
			g, text[:at] + text[at+strings.IndexByte(text[at:], '"'):], "cannot be decrypted",
		},
		"moved": {g, strings.ReplaceAll(text, "${h}", "j"), "cannot be decrypted"},
		"exchanged": {g, strings.NewReplacer("dhchap_key", "tls_key", "tls_key", "dhchap_key").
			Replace(text), "cannot be decrypted"},
	} {
		testutil.Fails(t, testutil.Err(tc.g.File(tc.text, "1")), tc.want, "%s", name)
	}
	for _, bad := range []string{
		"", "{", "{} {}", `{"hosts": 1}`, `{"hosts": [1, null]}`, "[]",
		`{"subsystems": [], "hosts": [{"tls_key": "t"}], "subsystems": []}`,
	} {
		testutil.Equal(t, g.Seal(bad), bad, "a text that is refused, or has no secrets")
	}
}
