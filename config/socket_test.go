package config

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// TestControl: octal digits mean the same with and without quotes, and "" is no socket.
func TestControl(t *testing.T) {
	for text, want := range map[string]Control{
		`{}`:                            {Socket: AutoSocket, Mode: 0o600},
		`{socket: "", mode: 0660}`:      {Mode: 0o660},
		`{socket: /a/b, mode: "660"}`:   {Socket: "/a/b", Mode: 0o660},
		`{mode: 0o600, group: storage}`: {Socket: AutoSocket, Mode: 0o600, Group: "storage"},
		`{mode: 0200}`:                  {},
		`{mode: 0755}`:                  {},
		`{mode: 384}`:                   {},
		`{mode: [0600]}`:                {},
		`{socket: run/a}`:               {},
		`{listen: "10.0.0.1:1", certificate: /c, key: /k, client_ca: /a}`: {
			Socket: AutoSocket, Mode: 0o600, Listen: netip.MustParseAddrPort("10.0.0.1:1"),
			Certificate: "/c", Key: "/k", ClientCA: "/a",
		},
		`{listen: "10.0.0.1:1", certificate: /c, key: /k}`:                   {},
		`{listen: "10.0.0.1:1", certificate: c, key: /k, client_ca: /a}`:     {},
		`{certificate: /c, key: /k, client_ca: /a}`:                          {},
		`{listen: "10.0.0.1:4420", certificate: /c, key: /k, client_ca: /a}`: {},
		`{socket: /` + strings.Repeat("a", maxSocket) + `}`:                  {},
	} {
		c, err := Parse("a.yaml", []byte(`
listeners: [{transport: tcp, address: 10.0.0.1}]
subsystems:
  - nqn: nqn.2026-11.io.nvmf-target:disk0
    allow_any_host: true
    namespaces: [{nsid: 1, backend: ram, size: 1GiB}]
control: `+text), nil, testBackends)
		switch {
		case reflect.DeepEqual(want, Control{}):
			if err == nil {
				t.Errorf("%s is accepted: %+v", text, c.Control)
			}
		case err != nil || !reflect.DeepEqual(c.Control, want):
			t.Errorf("%s: %+v, %v, want %+v", text, c, err, want)
		}
	}
}
