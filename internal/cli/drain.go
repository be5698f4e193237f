package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// drainEvery is the interval at which drain asks for the number of connections left.
var drainEvery = 100 * time.Millisecond

func drainCommand() *cobra.Command {
	timeout := time.Minute
	cmd := listenerCommand("drain", "Take a listener out of service and wait for its connections",
		func(ctx context.Context, cmd *cobra.Command, c *control.Client,
			which control.ListenerID,
		) ([]observed.Listener, error) {
			list, err := control.PostDrain.To(ctx, c, which)
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return awaitDrained(ctx, cmd, c, list)
		})
	cmd.Long = "Take a listener, or all of them, out of service for maintenance: it accepts no " +
		"connections and leaves the discovery log, and hosts are notified. Its connections end " +
		"when their current commands are completed. Hosts continue over their other paths; a " +
		"host without one waits for as long as ctrl_loss_tmo allows. The command waits until " +
		"all connections have ended. A reload keeps the listener drained; undrain or a restart " +
		"of the target ends that."
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	return cmd
}

func groupDrainCommand() *cobra.Command {
	undo, timeout := false, time.Minute
	cmd := command("drain GROUP|GATEWAY", "Give a group, or all groups of this gateway, to "+
		"other gateways",
		cobra.ExactArgs(1),
		func(ctx context.Context, c *control.Client, args []string) ([]observed.Group, error) {
			which := control.GroupDrain{Gateway: args[0], Undo: undo}
			if n, err := strconv.ParseUint(args[0], 10, 32); err == nil {
				which.Group, which.Gateway = uint32(n), ""
			}
			list, err := control.PostGroupDrain.To(ctx, c, which)
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			for err == nil && !undo {
				i := slices.IndexFunc(list, func(g observed.Group) bool {
					return g.Drained && (g.Holder == "" || g.State != "standby") &&
						(which.Group == 0 || which.Group == g.ANAGroup)
				})
				if i < 0 {
					break
				}
				select {
				case <-time.After(drainEvery):
				case <-ctx.Done():
					return nil, fmt.Errorf("no other gateway has taken group %d yet. "+
						"`nvmf-target group status` shows why; with --undo this gateway takes it "+
						"again", list[i].ANAGroup)
				}
				list, err = control.GetGroups.From(ctx, c)
			}
			return list, err
		}, groups)
	cmd.Long = cmd.Short + ", without stopping this one: the I/O of the group ends here, " +
		"another gateway takes it without a fence, and hosts continue there. The command waits " +
		"for that. This gateway takes the group again only after --undo or a restart."
	cmd.Flags().BoolVar(&undo, "undo", false, "let this gateway take the group again, if no "+
		"other gateway has it")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	return cmd
}

func undrainCommand() *cobra.Command {
	return listenerCommand("undrain", "Put a drained listener back into service",
		func(ctx context.Context, _ *cobra.Command, c *control.Client, which control.ListenerID,
		) ([]observed.Listener, error) {
			return control.PostUndrain.To(ctx, c, which)
		})
}

// listenerCommand makes a command that acts on one listener, or on all.
func listenerCommand(verb, short string, do func(context.Context, *cobra.Command, *control.Client,
	control.ListenerID) ([]observed.Listener, error),
) *cobra.Command {
	all := false
	var cmd *cobra.Command
	cmd = command(verb+" ADDRESS:PORT|PORT_ID|--all", short, cobra.MaximumNArgs(1),
		func(ctx context.Context, c *control.Client, args []string) ([]observed.Listener, error) {
			if all == (len(args) == 1) {
				return nil, errors.New("give a listener as `nvmf-target listeners` shows it, or " +
					"--all")
			}
			which := control.ListenerID{All: all}
			if !all {
				which.Listener = args[0]
			}
			return do(ctx, cmd, c, which)
		}, listeners)
	cmd.Flags().BoolVar(&all, "all", false, "all listeners")
	return cmd
}

// awaitDrained waits until no connection of the listeners is left. It prints their number.
func awaitDrained(ctx context.Context, cmd *cobra.Command, c *control.Client,
	list []observed.Listener,
) ([]observed.Listener, error) {
	ids := map[uint16]bool{}
	for _, l := range list {
		ids[l.PortID] = true
	}
	for last := 0; ; {
		list = slices.DeleteFunc(list, func(l observed.Listener) bool { return !ids[l.PortID] })
		left := 0
		for _, l := range list {
			if l.State == "draining" {
				left += l.Connections
			}
		}
		if left == 0 {
			return list, nil
		}
		if left != last {
			cmd.PrintErrln(count(left, "connection") + " left")
		}
		last = left
		select {
		case <-time.After(drainEvery):
		case <-ctx.Done():
			return nil, fmt.Errorf("%s left: they end when the storage completes their commands. "+
				"`nvmf-target connections` lists them", count(left, "connection"))
		}
		var err error
		if list, err = control.GetListeners.From(ctx, c); err != nil {
			return nil, err
		}
	}
}
