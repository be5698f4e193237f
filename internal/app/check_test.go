package app

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestCheckAllStages: errors in the text do not hide errors of the machine, except about unusable
// values.
func TestCheckAllStages(t *testing.T) {
	dir := t.TempDir()
	file := writeConfig(t, fmt.Sprintf(`
listeners: [{transport: tcp, address: 127.0.0.1, prt: 1}]
control: {roles: [{subject: CN=a, role: read}]}
subsystems:
- nqn: nqn.2026-11.io.nvmf-target:disk0
  allow_any_host: true
  hsts: []
  namespaces:
  - {nsid: 1, backend: file, path: %[1]s}
  - {nsid: 2, backend: file, path: %[1]s/missing/a, sise: 1}
  - {nsid: 3, backend: malloc, path: %[1]s}
`, dir))
	var out bytes.Buffer
	err := check.File(file, nil, &out)
	testutil.MustTrue(t, err != nil && out.Len() == 0, "accepted: %s", out.String())
	for part, want := range map[string]int{
		"listeners[0].prt: unknown key": 1, "control.roles[0].subject: has no effect": 1,
		"subsystems[0].hsts: unknown key": 1, "namespaces[1].sise: unknown key": 1,
		`backend: "malloc" is not possible here. Did you mean ram?`: 1,
		"namespaces[0].path: ": 1, "namespaces[1].path": 0, "namespaces[2].path": 0,
	} {
		n := strings.Count(err.Error(), part)
		testutil.True(t, n == want, "%d errors with %q, want %d:\n%v", n, part, want, err)
	}
}
