package cli

import (
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestReloadAsks: on a terminal commands ask before hosts lose something, and only then.
func TestReloadAsks(t *testing.T) {
	lost := control.Affected{Host: testHost, Effect: control.Disconnects, Controllers: 1}
	waits := control.Affected{Host: testHost, Effect: control.Waits, Controllers: 1}
	for _, row := range []struct {
		name     string
		affected control.Affected
		args     string
		terminal bool
		answer   string
		asks     bool
		reloads  bool
	}{
		{"yes", lost, "", true, "y\n", true, true},
		{"yes, in full", lost, "", true, "Yes\n", true, true},
		{"no", lost, "", true, "n\n", true, false},
		{"nothing", lost, "", true, "\n", true, false},
		{"end of input", lost, "", true, "\x04", true, false},
		{"--yes", lost, "--yes", true, "", false, true},
		{"no terminal", lost, "", false, "", false, true},
		{"nobody loses anything", waits, "", true, "", false, true},
	} {
		for _, command := range []string{"reload", "subsystem delete s", "listener create l"} {
			t.Run(row.name+", "+command, func(t *testing.T) {
				src, reloaded := source(), false
				plan := control.Plan{Changes: []control.Change{
					{Text: "a change", Affected: []control.Affected{row.affected}},
				}}
				src.Plan = func(context.Context) (control.Plan, error) { return plan, nil }
				src.Reload = func(context.Context) (control.Plan, error) {
					reloaded = true
					return plan, nil
				}
				src.Put = func(_ context.Context, _ control.Object, _ []byte, dry bool) (
					control.Plan, error,
				) {
					reloaded = reloaded || !dry
					return plan, nil
				}
				src.Delete = func(_ context.Context, _ control.Object, _, dry bool) (control.Plan,
					error,
				) {
					reloaded = reloaded || !dry
					return plan, nil
				}
				var out strings.Builder
				root := &cobra.Command{Use: "nvmf-target", SilenceErrors: true, SilenceUsage: true}
				root.AddCommand(Commands()...)
				root.SetOut(&out)
				root.SetErr(&out)
				if row.terminal {
					ours, tty := pty(t)
					testutil.Value(ours.WriteString(row.answer))(t)
					root.SetIn(tty)
				} else {
					root.SetIn(strings.NewReader(""))
				}
				root.SetArgs(append(append(strings.Fields(command), "--socket", serve(t, src)),
					strings.Fields(row.args)...))
				err := root.ExecuteContext(t.Context())
				testutil.True(t, reloaded == row.reloads && (err == nil) == row.reloads,
					"reloaded %v, %v, want %v", reloaded, err, row.reloads)
				const question = "1 connected host would lose access as shown above. Apply? [y/N] "
				testutil.True(t, strings.Contains(out.String(), question) == row.asks,
					"asks %v, printed %q", !row.asks, out.String())
			})
		}
	}
}
