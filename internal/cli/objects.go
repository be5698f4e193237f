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
	"sync"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/internal/control"
)

// This file has the commands that create and delete objects in the managed directory of a target.

const managedNote = " The change is stored in the directory that `managed` names in the " +
	"configuration. To change objects of the configuration file itself, edit that file."

func subsystemCommand() *cobra.Command {
	return Group("subsystem", "Create and delete a subsystem",
		createCommand("create SUBSYSTEM_NQN", "Create or change a subsystem", subsystemOf),
		deleteCommand(deleteSubsystem, "Delete a subsystem", subsystemOf))
}

const deleteSubsystem = "delete SUBSYSTEM_NQN"

func listenerObjectCommand() *cobra.Command {
	const named = ". NAME is your own name, or the transport, the address and the port, as in " +
		`"tcp 10.0.0.1:4420".`
	return Group("listener", "Create and delete a listener",
		noted(createCommand("create NAME", "Create or change a listener", listenerOf), named),
		noted(deleteCommand("delete NAME", "Delete a listener", listenerOf), named))
}

func referralCommand() *cobra.Command {
	const named = `. NAME is as in "tcp 10.0.0.9:8009", followed by the NQN if the discovery ` +
		"service has its own NQN."
	return Group("referral", "Create and delete a referral to another discovery service",
		noted(createCommand("create NAME", "Create or change a referral", referralOf), named),
		noted(deleteCommand("delete NAME", "Delete a referral", referralOf), named))
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
	return Group("host", "Allow a host to connect, and manage its settings and keys", allow,
		deny, hostKeyCommand(),
		createCommand("create HOST_NQN",
			"Create or change the settings of a host for all subsystems", hostOf),
		deleteCommand("delete HOST_NQN", "Delete the settings of a host", hostOf))
}

// hostKeyCommand sets secrets. They are not arguments, which all users of a machine can see.
func hostKeyCommand() *cobra.Command {
	var file, until string
	remove := false
	read := sync.OnceValues(func() ([]byte, error) { return readFile(file) })
	cmd := changeCommand("key HOST_NQN KEY", "Set, rotate or remove a key of a host", 2,
		func(ctx context.Context, c *control.Client, args []string) (control.Plan, error) {
			o := control.Object{Host: args[0], Key: args[1]}
			if remove {
				return c.Delete(ctx, o, false)
			}
			text, err := read()
			if err != nil {
				return control.Plan{}, err
			}
			body, err := json.Marshal(control.HostKey{
				Key: strings.TrimSpace(string(text)), OldKeysUntil: until,
			})
			if err != nil {
				return control.Plan{}, err
			}
			return c.Put(ctx, o, body)
		})
	cmd.Long = "Set, rotate or remove a key of a host. KEY is dhchap_key, dhchap_ctrl_key or " +
		"tls_key, or dhchap_old_key or tls_old_key, which rotation sets. The key comes from a " +
		"file." + managedNote + asksFirst
	cmd.Flags().StringVarP(&file, "file", "f", "-", "file with the key; - is the standard input")
	cmd.Flags().StringVar(&until, "old-until", "", "rotate the key: the previous one stays valid "+
		"until this date (2027-01-31) or time")
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the key")
	cmd.MarkFlagsMutuallyExclusive("remove", "file")
	cmd.MarkFlagsMutuallyExclusive("remove", "old-until")
	return cmd
}

// changeCommand makes a command that changes an object.
func changeCommand(use, short string, args int,
	do func(context.Context, *control.Client, []string) (control.Plan, error),
) *cobra.Command {
	cmd := confirmed(use, short, cobra.ExactArgs(args), do)
	return noted(cmd, ".")
}

// noted appends text to the description of a command that changes an object.
func noted(cmd *cobra.Command, text string) *cobra.Command {
	cmd.Long = cmd.Short + text + managedNote + asksFirst
	return cmd
}

// createCommand makes a command that creates the object named by its arguments.
func createCommand(use, short string, named func([]string) (control.Object, error)) *cobra.Command {
	var file string
	var set []string
	given := sync.OnceValues(func() (json.RawMessage, error) { return keys(file, set) })
	cmd := changeCommand(use, short, strings.Count(use, " "),
		func(ctx context.Context, c *control.Client, args []string) (control.Plan, error) {
			o, err := named(args)
			if err != nil {
				return control.Plan{}, err
			}
			keys, err := given()
			if err != nil {
				return control.Plan{}, err
			}
			return c.Put(ctx, o, keys)
		})
	cmd.Flags().StringVarP(&file, "file", "f", "",
		"YAML or JSON file with its keys, as in the configuration; - is the standard input")
	cmd.Flags().StringArrayVar(&set, "set", nil, "KEY=VALUE; can be repeated")
	return cmd
}

// deleteCommand makes a command that deletes the object named by its arguments.
func deleteCommand(use, short string, named func([]string) (control.Object, error)) *cobra.Command {
	recursive := false
	cmd := changeCommand(use, short, strings.Count(use, " "),
		func(ctx context.Context, c *control.Client, args []string) (control.Plan, error) {
			o, err := named(args)
			if err != nil {
				return control.Plan{}, err
			}
			return c.Delete(ctx, o, recursive)
		})
	if use == deleteSubsystem {
		cmd.Flags().BoolVar(&recursive, "recursive", false,
			"also delete the namespaces and hosts that were created in it")
	}
	return cmd
}

func subsystemOf(args []string) (control.Object, error) {
	return control.Object{Subsystem: args[0]}, nil
}

func hostOf(args []string) (control.Object, error) { return control.Object{Host: args[0]}, nil }

func listenerOf(args []string) (control.Object, error) {
	return control.Object{Listener: args[0]}, nil
}

func referralOf(args []string) (control.Object, error) {
	return control.Object{Referral: args[0]}, nil
}

func namespaceOf(args []string) (control.Object, error) {
	nsid, err := positive[uint32]("NSID", args[1])
	return control.Object{Subsystem: args[0], NSID: nsid}, err
}

// positive parses a number from 1, the argument with this name.
func positive[T uint32 | uint64](name, text string) (n T, err error) {
	all, err := strconv.ParseUint(text, 10, 64)
	if n = T(all); err != nil || n == 0 || uint64(n) != all {
		return 0, fmt.Errorf("%s is a number from 1, not %q", name, text)
	}
	return n, nil
}

// readFile reads a file; - means standard input.
func readFile(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}

// keys makes the body of a request from a file and KEY=VALUE arguments.
func keys(file string, set []string) (json.RawMessage, error) {
	all := map[string]any{}
	if file != "" {
		text, err := readFile(file)
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

// decode decodes YAML, or JSON, which has escapes and tabs that YAML does not have. As in a
// configuration, a date is text, since JSON has no dates.
func decode(text []byte, v any) error {
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil {
		if json.Unmarshal(text, v) == nil {
			return nil
		}
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
