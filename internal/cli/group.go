package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/internal/control"
)

// This file has the commands for the configuration that gateways share.

// applyCommand stores a configuration of the group.
func applyCommand() *cobra.Command {
	shared, base := false, uint64(0)
	cmd := confirmed("apply FILE", "Change the configuration that gateways share",
		cobra.ExactArgs(1),
		func(ctx context.Context, c *control.Client, args []string) (control.Plan, error) {
			if !shared {
				return control.Plan{}, errors.New("only the configuration of a group of gateways " +
					"can be applied, with --group. For the configuration file, use reload")
			}
			text, err := keys(args[0], nil)
			if err != nil {
				return control.Plan{}, err
			}
			return control.PostGroupChange.To(ctx, c, control.GroupChange{
				Configuration: string(text), Base: base, DryRun: c.DryRun,
			})
		})
	cmd.Long = cmd.Short + ": the subsystems and hosts that all of them serve. FILE replaces " +
		"the version in force; - is the standard input." + asksFirst
	cmd.Flags().BoolVar(&shared, "group", false, "required: apply the file at all gateways of "+
		"the group")
	cmd.Flags().Uint64Var(&base, "base", 0, "fail if there is a newer version than this one")
	return cmd
}

func historyCommand() *cobra.Command {
	version := uint64(0)
	cmd := command("history [VERSION]",
		"List the versions of the shared configuration, or show one", cobra.MaximumNArgs(1),
		func(ctx context.Context, c *control.Client, args []string) (list []control.GroupVersion,
			err error,
		) {
			if len(args) > 0 {
				version, err = positive[uint64]("VERSION", args[0])
			}
			if err == nil {
				list, err = control.GetGroupVersions.From(ctx, c)
			}
			if err != nil || version == 0 {
				return list, err
			}
			for i := range list {
				if list[i].Version == version {
					return list[i : i+1], nil
				}
			}
			return nil, fmt.Errorf("there is no version %d", version)
		}, func(t *table, list []control.GroupVersion) {
			if version != 0 {
				var content any
				_ = decode([]byte(list[0].Configuration), &content) // the target has checked it
				text, _ := yaml.Marshal(content)
				t.line(strings.TrimSuffix(string(text), "\n"))
				return
			}
			t.row("VERSION", "STORED", "BY", "CONTENT")
			for i := range list {
				v := &list[i]
				content := fmt.Sprintf("%d bytes", len(v.Configuration))
				if v.Of != 0 {
					content = fmt.Sprintf("as version %d", v.Of)
				}
				if v.Applied {
					content += ", in force here"
				}
				t.row(v.Version, stamp(v.Time), v.Gateway, content)
			}
		})
	cmd.Long = cmd.Short + ", as a file for `nvmf-target apply`."
	return cmd
}

func rollbackCommand() *cobra.Command {
	cmd := confirmed("rollback VERSION", "Return to an earlier version of the shared configuration",
		cobra.ExactArgs(1),
		func(ctx context.Context, c *control.Client, args []string) (control.Plan, error) {
			version, err := positive[uint64]("VERSION", args[0])
			if err != nil {
				return control.Plan{}, err
			}
			return control.PostGroupChange.To(ctx, c, control.GroupChange{
				Rollback: version, DryRun: c.DryRun,
			})
		})
	cmd.Long = cmd.Short + ". That version is stored again as a new one, for all gateways." +
		asksFirst
	return cmd
}
