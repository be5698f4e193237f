package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/internal/control"
)

// This file has the commands that create and delete objects in the managed directory of a target.

const managedNote = " It is kept in the directory that `managed` of the configuration names; " +
	"what stands in the configuration file itself is changed there."

func subsystemCommand() *cobra.Command {
	return Group("subsystem", "Create and delete a subsystem",
		createCommand("create SUBSYSTEM_NQN", "Create or change a subsystem", 1),
		deleteCommand("delete SUBSYSTEM_NQN", "Delete a subsystem", 1))
}

func hostCommand() *cobra.Command {
	allow := changeCommand("allow SUBSYSTEM_NQN HOST_NQN", "Let a host connect to a subsystem", 2,
		func(ctx context.Context, c *control.Client, args []string) (control.Plan, error) {
			return c.Put(ctx, control.Object{Subsystem: args[0], Host: args[1]}, nil)
		})
	deny := changeCommand("deny SUBSYSTEM_NQN HOST_NQN",
		"Disconnect a host from a subsystem and do not let it connect again", 2,
		func(ctx context.Context, c *control.Client, args []string) (control.Plan, error) {
			return c.Delete(ctx, control.Object{Subsystem: args[0], Host: args[1]}, false)
		})
	return Group("host", "Allow a host to connect, and end that", allow, deny)
}

// changeCommand makes a command that changes an object.
func changeCommand(use, short string, args int,
	do func(context.Context, *control.Client, []string) (control.Plan, error),
) *cobra.Command {
	cmd := command(use, short, cobra.ExactArgs(args), do, reloaded)
	cmd.Long = short + "." + managedNote
	return cmd
}

// createCommand makes a command that creates the object which its arguments name.
func createCommand(use, short string, args int) *cobra.Command {
	var file string
	var set []string
	cmd := changeCommand(use, short, args,
		func(ctx context.Context, c *control.Client, args []string) (control.Plan, error) {
			o, err := named(args)
			if err != nil {
				return control.Plan{}, err
			}
			keys, err := keys(file, set)
			if err != nil {
				return control.Plan{}, err
			}
			return c.Put(ctx, o, keys)
		})
	cmd.Flags().StringVarP(&file, "file", "f", "",
		"YAML or JSON file with its keys, as in the configuration; - is the standard input")
	cmd.Flags().StringArrayVar(&set, "set", nil, "KEY=VALUE, may be given several times")
	return cmd
}

// deleteCommand makes a command that deletes the object which its arguments name.
func deleteCommand(use, short string, args int) *cobra.Command {
	recursive := false
	cmd := changeCommand(use, short, args,
		func(ctx context.Context, c *control.Client, args []string) (control.Plan, error) {
			o, err := named(args)
			if err != nil {
				return control.Plan{}, err
			}
			return c.Delete(ctx, o, recursive)
		})
	if args == 1 {
		cmd.Flags().BoolVar(&recursive, "recursive", false,
			"also the namespaces and hosts that were created in it")
	}
	return cmd
}

// named is the subsystem or the namespace that arguments name.
func named(args []string) (o control.Object, err error) {
	o.Subsystem = args[0]
	if len(args) > 1 {
		o.NSID, err = parseNSID(args[1])
	}
	return o, err
}

func parseNSID(text string) (uint32, error) {
	nsid, err := strconv.ParseUint(text, 10, 32)
	if err != nil || nsid == 0 {
		return 0, fmt.Errorf("NSID is a number from 1, not %q", text)
	}
	return uint32(nsid), nil
}

// keys makes the body of a request of a file and of KEY=VALUE.
func keys(file string, set []string) (json.RawMessage, error) {
	all := map[string]any{}
	if file != "" {
		var text []byte
		var err error
		if file == "-" {
			text, err = io.ReadAll(os.Stdin)
		} else {
			text, err = os.ReadFile(file)
		}
		if err != nil {
			return nil, err
		}
		if err := decode(text, &all); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if all == nil { // null
			all = map[string]any{}
		}
	}
	for _, s := range set {
		key, text, ok := strings.Cut(s, "=")
		var value any
		if !ok {
			return nil, fmt.Errorf("--set is KEY=VALUE, not %q", s)
		}
		if err := decode([]byte(text), &value); err != nil {
			return nil, fmt.Errorf("--set %s: %w", key, err)
		}
		all[key] = value
	}
	body, err := json.Marshal(all)
	if err != nil {
		return nil, errors.Join(errors.New("the keys cannot be sent"), err)
	}
	return body, nil
}

// decode decodes YAML in which a date is text, as in a configuration: JSON has none.
func decode(text []byte, v any) error {
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil {
		return err
	}
	datesAreText(&n)
	return n.Decode(v)
}

func datesAreText(n *yaml.Node) {
	if n.Tag == "!!timestamp" {
		n.Tag = "!!str"
	}
	for _, c := range n.Content {
		datesAreText(c)
	}
}
