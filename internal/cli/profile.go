package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/control"
)

func profileCommand() *cobra.Command {
	o := options{output: "text"}
	var file string
	var seconds int
	names := append([]string{"cpu"}, control.Profiles[1:]...)
	cmd := &cobra.Command{
		Use: "profile NAME", Short: "Take a profile of the target, for developers",
		Long: "Take a profile of the running target and write it to a file: cpu (where CPU time " +
			"is spent; taking it costs some CPU time), trace (the activity of goroutines), or " +
			"heap, allocs, goroutine, threadcreate, block and mutex. go tool trace reads the " +
			"trace, and go tool pprof the others. A profile has functions, sizes and times, but " +
			"no keys and no data. Only one profile can be taken at a time. This needs the role " +
			"admin.",
		Example: `  nvmf-target profile cpu --seconds 10 -o cpu.pprof && go tool pprof -top cpu.pprof`,
		Args:    cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if seconds < 0 || seconds > control.MaxProfile {
				return fmt.Errorf("--seconds %d: 1 to %d", seconds, control.MaxProfile)
			}
			name := args[0]
			if file = cmp.Or(file, name+".pprof"); name == "cpu" {
				name = control.Profiles[0]
			}
			c, err := o.client()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(),
				control.MaxProfile*time.Second+readTimeout)
			defer cancel()
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
			if err != nil {
				return err
			}
			if err = errors.Join(c.Profile(ctx, name, seconds, f), f.Close()); err != nil {
				return errors.Join(err, os.Remove(file))
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "written to "+file)
			return err
		},
	}
	o.addTarget(cmd)
	cmd.Flags().StringVarP(&file, "output", "o", "", "file (default NAME.pprof)")
	cmd.Flags().IntVar(&seconds, "seconds", 0,
		"duration, 1 to 60 (default: cpu 30, trace 1, others a snapshot)")
	return cmd
}
