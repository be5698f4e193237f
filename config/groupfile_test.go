package config

import (
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
