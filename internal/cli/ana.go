package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

func anaCommand() *cobra.Command {
	cmd := read("ana", "List the ANA groups with their states at the listeners", control.GetANA,
		anaStates)
	listener := ""
	set := command("set GROUP STATE", "Set the state of an ANA group by hand", cobra.ExactArgs(2),
		func(ctx context.Context, c *control.Client, args []string) ([]control.ANA, error) {
			group, err := positive[uint32]("GROUP", args[0])
			if err != nil {
				return nil, err
			}
			return control.PostANA.To(ctx, c, control.ANASet{
				Group: group, State: args[1], Listener: listener,
			})
		}, anaStates)
	set.Long = "Set the state of an ANA group for a manual failover: optimized, non-optimized, " +
		"inaccessible, persistent-loss or change, at one listener or at all. Hosts are notified " +
		"and use their other paths. They are not disconnected, except when persistent-loss ends. " +
		"The state `change` becomes inaccessible after 10 seconds, unless another one is set. A " +
		"reload keeps the state. `configured` as STATE, or a restart of the target, returns to " +
		"the configured state."
	set.Flags().StringVar(&listener, "listener", "",
		"a listener as in the configuration, ADDRESS:PORT (default: all)")
	cmd.AddCommand(set)
	return cmd
}

func anaStates(t *table, list []control.ANA) {
	t.row("GROUP", "LISTENER", "STATE", "CONFIGURED", "NAMESPACES")
	for _, a := range list {
		names := make([]string, len(a.Namespaces))
		for i, n := range a.Namespaces {
			names[i] = fmt.Sprintf("%d of %s", n.NSID, n.Subsystem)
		}
		t.row(a.Group, a.Listener, a.State, a.Configured, or(strings.Join(names, ", ")))
	}
}

func groupCommand() *cobra.Command {
	gateway := func(use, short string, do control.Post[control.GatewayID, []observed.Group],
	) *cobra.Command {
		return command(use, short, cobra.ExactArgs(1),
			func(ctx context.Context, c *control.Client, args []string) ([]observed.Group, error) {
				return do.To(ctx, c, control.GatewayID{Gateway: args[0]})
			}, groups)
	}
	forget := gateway("forget GATEWAY", "Forget a gateway that is gone for good",
		control.PostForget)
	forget.Long = forget.Short + ", in all groups. Use it only if its processes have ended: its " +
		"machine is off, or has another name now. A gateway that still runs joins again. A " +
		"gateway that holds a group cannot be forgotten."
	fence := gateway("fence GATEWAY", "Fence another gateway, and take over its groups",
		control.PostFence)
	fence.Long = fence.Short + ", without waiting for the end of its lease: the storage refuses " +
		"its connections from now on. Use it if you know that the gateway no longer serves its " +
		"hosts properly. If it still runs, it connects and joins again, without these groups."
	return Group("group", "Show the ANA groups that several gateways share, and change their "+
		"configuration", read("status",
		"List the groups with their holders, fences and gateways", control.GetGroups, groups),
		groupDrainCommand(), fence, forget, historyCommand(), rollbackCommand())
}

func groups(t *table, list []observed.Group) {
	t.row("GROUP", "STATE", "HOLDER", "FOR", "REASON", "LEASE", "GATEWAYS", "FENCED", "VERSION",
		"PROBLEM")
	seconds := func(n float64) string { return (time.Duration(n) * time.Second).String() }
	for i := range list {
		g := &list[i]
		state := g.State
		if g.Drained {
			state += ", drained"
		}
		var gateways, fenced []string
		for _, w := range g.Gateways {
			if gateways = append(gateways, w.Name); w.Hosts {
				gateways[len(gateways)-1] += " with hosts"
			}
		}
		for _, w := range g.Fenced {
			fenced = append(fenced, w.Name+" "+strings.Join(w.Addresses, " "))
		}
		problems := g.Differences
		if g.Problem != "" {
			problems = append([]string{g.Problem}, problems...)
		}
		if g.FenceSeconds > 0 {
			fenced = append(fenced, "for "+seconds(g.FenceSeconds))
		}
		version := "-"
		if g.Configuration > 0 {
			version = strconv.FormatUint(g.Configuration, 10)
		}
		t.row(g.ANAGroup, state, or(g.Holder), seconds(g.HolderSeconds), or(g.Reason),
			seconds(g.LeaseSeconds), or(strings.Join(gateways, ", ")),
			or(strings.Join(fenced, ", ")), version, or(strings.Join(problems, "; ")))
	}
}
