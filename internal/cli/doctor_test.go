package cli

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestDoctor(t *testing.T) {
	fine := doctor.Finding{Check: "clock", Severity: doctor.OK, Found: "tsc"}
	bad := func(s doctor.Severity) doctor.Finding {
		return doctor.Finding{
			Check: "listener", Severity: s, Found: "used by \x1b[2J", Why: "It " +
				"waits.", Fix: "stop it",
		}
	}
	for _, tc := range []struct {
		list []doctor.Finding
		text string
		err  error
	}{
		{[]doctor.Finding{fine}, "ok  clock  tsc\n", nil},
		{
			[]doctor.Finding{fine, bad(doctor.Note)}, "ok    clock     tsc\n" +
				"note  listener  \"used by \\x1b[2J\"\n                why: It waits.\n" +
				"                fix: stop it\n", nil,
		},
		{
			[]doctor.Finding{bad(doctor.Warning)}, "warning  listener  \"used by \\x1b[2J\"\n" +
				"                   why: It waits.\n                   fix: stop it\n", ErrWarnings,
		},
		{
			[]doctor.Finding{bad(doctor.Error), bad(doctor.Warning)}, "", ErrErrors,
		},
	} {
		run := func(args ...string) (string, error) {
			cmd := Doctor(func(*cobra.Command, string) []doctor.Finding { return tc.list })
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			var out bytes.Buffer
			cmd.SetOut(&out)
			cmd.SetArgs(append([]string{}, args...)) // for nil it would use os.Args
			err := cmd.Execute()
			return out.String(), err
		}
		text, err := run()
		testutil.True(t, (tc.text == "" || text == tc.text) && err == tc.err,
			"got %q, %v, want %q, %v", text, err, tc.text, tc.err)
		text, err = run("-o", "json")
		var list []doctor.Finding
		testutil.True(t, json.Unmarshal([]byte(text), &list) == nil &&
			slices.Equal(list, tc.list) && err == tc.err, "as JSON: %s, %v", text, err)
		text, err = run("-o", "xml")
		testutil.True(t, err != nil && err != tc.err && text == "", "as XML: %q, %v", text, err)
	}
}
