package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/control"
)

// This file has the effects of changes on hosts. plan and reload print them, and commands ask for
// confirmation before hosts lose something.

// mostAffected is the number of hosts that are named for each effect of a change.
const mostAffected = 3

var errNotConfirmed = errors.New("nothing was changed")

func reloadCommand() *cobra.Command {
	cmd := confirmed("reload", "Apply the configuration file without a restart", cobra.NoArgs,
		func(ctx context.Context, c *control.Client, _ []string) (control.Plan, error) {
			if c.DryRun {
				return control.GetPlan.From(ctx, c)
			}
			return c.Reload(ctx)
		})
	cmd.Long = cmd.Short + "." + asksFirst
	return cmd
}

const asksFirst = " At a terminal, the command asks for confirmation if connected hosts " +
	"would be disconnected or lose a namespace."

// confirmed makes a command that changes something. On a terminal it first sends DryRun, and asks
// for confirmation if connected hosts would lose something.
func confirmed(use, short string, args cobra.PositionalArgs,
	do func(context.Context, *control.Client, []string) (control.Plan, error),
) *cobra.Command {
	yes := false
	var cmd *cobra.Command
	cmd = command(use, short, args,
		func(ctx context.Context, c *control.Client, args []string) (control.Plan, error) {
			if in, ok := cmd.InOrStdin().(*os.File); ok && !yes && isTerminal(in) {
				c.DryRun = true
				p, err := do(ctx, c, args)
				if err == nil {
					err = confirm(in, cmd.ErrOrStderr(), p)
				}
				if err != nil {
					return p, err
				}
				c.DryRun = false
			}
			return do(ctx, c, args)
		}, func(t *table, p control.Plan) { changes(t, p, "applied") })
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// confirm asks for a confirmation if connected hosts would lose something.
func confirm(in io.Reader, out io.Writer, p control.Plan) error {
	hosts := map[string]bool{}
	for _, c := range p.Changes {
		for _, a := range c.Affected {
			if a.Effect != control.Waits {
				hosts[a.Host] = true
			}
		}
	}
	if len(hosts) == 0 {
		return nil
	}
	t := newTable(out)
	planned(t, p)
	if err := t.flush(); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "%s would lose access as shown above. Apply? [y/N] ",
		count(len(hosts), "connected host")); err != nil {
		return err
	}
	answer, err := bufio.NewReader(in).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(errNotConfirmed, err)
}

// affected returns lines with the hosts affected by a change, one for each effect.
func affected(list []control.Affected) (lines []string) {
	for _, e := range []struct{ effect, text string }{
		{control.Disconnects, "disconnected: "},
		{control.Loses, "lose the namespace: "},
		{control.Waits, "wait while the storage is opened: "},
	} {
		var named []string
		more := 0
		for _, a := range list {
			switch {
			case a.Effect != e.effect:
			case len(named) == mostAffected:
				more++
			default:
				named = append(named, fmt.Sprintf("%s (%s, %s in flight)", a.Host,
					count(a.Controllers, "controller"), count(a.InFlight, "command")))
			}
		}
		if more > 0 {
			named = append(named, "and "+count(more, "more host"))
		}
		if named != nil {
			lines = append(lines, "    "+e.text+strings.Join(named, ", "))
		}
	}
	return lines
}
