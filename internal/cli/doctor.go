package cli

import (
	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/doctor"
)

// Doctor makes the command that prints the findings of checks. check is given the socket of the
// target, "" for the socket of the configuration.
func Doctor(check func(c *cobra.Command, socket string) []doctor.Finding) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check this machine and show problems with their fixes",
		Long: "Check this machine, and the configuration if there is one, and show problems " +
			"with their fixes. It also asks a running target for slow operations and their " +
			"causes. It only reads, and needs neither a running target nor root. It sees the " +
			"limits and rights of the user who runs it. The exit code is 0 if there is nothing " +
			"worse than a note, 3 if there are warnings, and 1 if there are errors.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			list := check(cmd, o.socket)
			err := printed(cmd.OutOrStdout(), &o, list, findings)
			switch {
			case err != nil:
				return err
			case doctor.Worst(list) == doctor.Error:
				return ErrErrors
			case doctor.Worst(list) == doctor.Warning:
				return ErrWarnings
			}
			return nil
		},
	}
	o.addSocket(cmd)
	o.addOutput(cmd)
	return cmd
}

func findings(t *table, list []doctor.Finding) {
	for _, f := range list {
		t.row(f.Severity, f.Check, f.Found)
		if f.Why != "" {
			t.row("", "", "why: "+f.Why)
		}
		if f.Fix != "" {
			t.row("", "", "fix: "+f.Fix)
		}
	}
}
