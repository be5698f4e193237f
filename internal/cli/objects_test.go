package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestObjects: the request of each command.
func TestObjects(t *testing.T) {
	src, asked := source(), ""
	src.Put = func(_ context.Context, o control.Object, body []byte, _ bool) (control.Plan,
		error,
	) {
		asked = fmt.Sprintf("put %s %s", o.Path(), body)
		return control.Plan{Changes: []control.Change{{Text: "+ it"}}}, nil
	}
	src.Delete = func(_ context.Context, o control.Object, recursive, _ bool) (control.Plan,
		error,
	) {
		asked = fmt.Sprintf("delete %s %t", o.Path(), recursive)
		return control.Plan{}, nil
	}
	socket, file := serve(t, src), filepath.Join(t.TempDir(), "n.yaml")
	testutil.Must(t, os.WriteFile(file, []byte("backend: file\nsize: 1GiB\n"), 0o600))
	key := file + ".key"
	testutil.Must(t, os.WriteFile(key, []byte("a key\n"), 0o600))
	for _, test := range []struct{ line, want string }{
		{
			"subsystem create a/b --set allow_any_host=true",
			`put /v1/subsystems/a%2Fb {"allow_any_host":true}`,
		},
		{"subsystem delete a", "delete /v1/subsystems/a false"},
		{"subsystem delete a --recursive", "delete /v1/subsystems/a true"},
		{
			"namespace create a 3 -f FILE --set path=/x --set size=2",
			`put /v1/subsystems/a/namespaces/3 ` +
				`{"backend":"file","path":"/x","size":2}`,
		},
		{
			"namespace delete a 3",
			"delete /v1/subsystems/a/namespaces/3 false",
		},
		{
			"host allow a nqn.2026-11.h:x%2F",
			"put /v1/subsystems/a/hosts/nqn.2026-11.h:x%252F {}",
		},
		{
			"host deny a h",
			"delete /v1/subsystems/a/hosts/h false",
		},
		{"listener create a --set transport=tcp", `put /v1/listeners/a {"transport":"tcp"}`},
		{"listener delete [fd00::1]:4420", "delete /v1/listeners/%5Bfd00::1%5D:4420 false"},
		{"referral create a", "put /v1/referrals/a {}"},
		{"referral delete a", "delete /v1/referrals/a false"},
		{"host create h/1 --set limits.x=1", `put /v1/hosts/h%2F1 {"limits.x":1}`},
		{"host delete h", "delete /v1/hosts/h false"},
		{"host key h tls_key -f KEY", `put /v1/hosts/h/keys/tls_key {"key":"a key"}`},
		{
			"host key h dhchap_key -f KEY --old-until 2027-01-31",
			`put /v1/hosts/h/keys/dhchap_key {"key":"a key","old_keys_until":"2027-01-31"}`,
		},
		{"host key h dhchap_key --remove", "delete /v1/hosts/h/keys/dhchap_key false"},
		{"host key h dhchap_key --remove -f KEY", "none of the others can be"},
		{
			"namespace create a b",
			`NSID is a number from 1, not "b"`,
		},
		{
			"namespace create a 0",
			`NSID is a number from 1, not "0"`,
		},
		{
			"namespace create a 1 --set path",
			`--set is KEY=VALUE, not "path"`,
		},
		{
			"namespace create a 1 --set path=[",
			"--set path: yaml: ",
		},
		{"namespace create a 1 -f absent", "open absent: "},
		{
			"subsystem delete a --address b",
			"missing [ca certificate key]",
		},
		{
			"subsystem delete a --address b --certificate x --key x --ca x",
			"none of the others can be",
		},
	} {
		asked = ""
		line := strings.NewReplacer("FILE", file, "KEY", key).Replace(test.line)
		out, err := run(t, append(strings.Fields(line), "--socket", socket)...)
		if err != nil {
			asked = err.Error()
		} else if !strings.HasSuffix(out, "1 change applied\n") && out != "nothing to do\n" {
			t.Errorf("%s: %q", line, out)
		}
		testutil.True(t, strings.Contains(asked, test.want), "%s: %q, want %q", line, asked,
			test.want)
	}
}

// TestKeys: texts stay as written.
func TestKeys(t *testing.T) {
	null := filepath.Join(t.TempDir(), "null.yaml")
	testutil.Must(t, os.WriteFile(null, []byte("null\n"), 0o600))
	got, err := keys(null, []string{
		"serial=2026-01-01", "model=2026-01-01 10:00:00", "of={uuid: [2026-01-01]}", "size=",
	})
	const want = `{"model":"2026-01-01 10:00:00","of":{"uuid":["2026-01-01"]},` +
		`"serial":"2026-01-01","size":null}`
	testutil.True(t, string(got) == want && err == nil, "%s, %v", got, err)
}
