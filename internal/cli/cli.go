// Package cli has the commands that query a running target through its control interface, and the
// command that checks the machine. They print text for people or JSON for programs.
package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// Exit is an exit code, as an error that is not printed since the command has reported it.
type Exit int

func (e Exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// ErrChanges is the error of plan if a reload would change something. ErrWarnings and ErrErrors are
// the errors of doctor if it has found some.
const (
	ErrChanges  = Exit(3)
	ErrWarnings = Exit(3)
	ErrErrors   = Exit(1)
)

// readTimeout bounds the wait for an answer of the target.
const readTimeout = 15 * time.Second

// Commands makes the commands.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		read("status", "Show the status of the target", control.GetStatus, status),
		read("listeners", "List the listeners, and the reason if one does not listen",
			control.GetListeners, listeners),
		read("subsystems", "List the subsystems and their allowed hosts",
			control.GetSubsystems, subsystems),
		read("namespaces", "List the namespaces, their state and their counters",
			control.GetNamespaces, namespaces),
		read("hosts", "List the connected hosts", control.GetHosts, hosts),
		read("connections", "List the connections (queues) and their current state",
			control.GetConnections, connections),
		latencyCommand(), traceCommand(), profileCommand(),
		read("refusals", "List recent refusals of peers, and the reasons",
			control.GetRefusals, refusals),
		topCommand(), eventsCommand(),
		planCommand(),
		reloadCommand(), restartCommand(), applyCommand(), disconnectCommand(), subsystemCommand(),
		namespaceCommand(), hostCommand(),
		listenerObjectCommand(), referralCommand(),
		read("objects", "List the configured objects, their request paths and their files",
			control.GetObjects, objects),
		drainCommand(), undrainCommand(), anaCommand(),
		groupCommand(), keyCommand(), manCommand(),
	}
}

// Group makes a command that only has subcommands. Without one it lists them. It fails for a
// mistyped subcommand, which cobra by default does not.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs, DisableFlagsInUseLine: true,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(commands...)
	return c
}

// options are the flags of all commands.
type options struct {
	socket, output string
	address        string
	files          httpd.Certificates
}

func (o *options) add(c *cobra.Command) {
	o.addTarget(c)
	o.addOutput(c)
}

// addTarget adds the flags that select a target.
func (o *options) addTarget(c *cobra.Command) {
	o.addSocket(c)
	c.Flags().StringVar(&o.address, "address", "",
		"HOST:PORT of a remote target (its control.listen), instead of a socket")
	c.Flags().StringVar(&o.files.Certificate, "certificate", "", "with --address: "+
		"PEM file with the certificate of this client")
	c.Flags().StringVar(&o.files.Key, "key", "", "with --address: "+
		"PEM file with the private key of this client")
	c.Flags().StringVar(&o.files.CA, "ca", "", "with --address: PEM file with the CA of the target")
	c.MarkFlagsRequiredTogether("address", "certificate", "key", "ca")
	c.MarkFlagsMutuallyExclusive("address", "socket")
}

// addSocket adds the flag that selects a target on this machine.
func (o *options) addSocket(c *cobra.Command) {
	c.Flags().StringVar(&o.socket, "socket", "",
		"control socket of the target (default: the default of control.socket)")
}

func (o *options) addOutput(c *cobra.Command) {
	c.Flags().StringVarP(&o.output, "output", "o", "text", "text, or json for programs")
	err := c.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag does not exist
	}
}

func (o *options) check() error {
	if o.output != "text" && o.output != "json" {
		return fmt.Errorf("--output is text or json, not %q", o.output)
	}
	return nil
}

// client returns a client that connects on first use.
func (o *options) client() (*control.Client, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.address != "" {
		return control.NewTLSClient(o.address, o.files)
	}
	o.socket = cmp.Or(o.socket, control.ClientSocket())
	return control.NewClient(o.socket), nil
}

// read makes a command that prints something.
func read[T any](use, short string, what control.Get[T], text func(*table, T)) *cobra.Command {
	limited := func(ctx context.Context, c *control.Client, _ []string) (T, error) {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		return what.From(ctx, c)
	}
	return command(use, short, cobra.NoArgs, limited, text)
}

// command makes a command that sends a request and prints the answer.
func command[T any](use, short string, args cobra.PositionalArgs,
	ask func(context.Context, *control.Client, []string) (T, error), text func(*table, T),
) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			defer c.Close()
			v, err := ask(cmd.Context(), c, args)
			if err != nil {
				return err
			}
			return printed(cmd.OutOrStdout(), &o, v, text)
		},
	}
	o.add(cmd)
	return cmd
}

// printed prints an answer as JSON, or as text with a table.
func printed[T any](w io.Writer, o *options, v T, text func(*table, T)) error {
	if o.output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	t := newTable(w)
	text(t, v)
	return t.flush()
}

func latencyCommand() *cobra.Command {
	cmd := read("latency", "Show how long commands took in each stage", control.GetLatency,
		latencies)
	cmd.Long = "Show how long the commands of each host for each namespace took, from their " +
		"arrival until the response had left, and how long they were in each stage, since the " +
		"host first used the namespace: wait (for memory or at a limit), host_data (transfer of " +
		"the data of writes), backend (the storage), response (transfer of the response and the " +
		"data of reads). The last column is the slowest command."
	return cmd
}

// planCommand prints the changes of a reload. The exit code tells whether there are any.
func planCommand() *cobra.Command {
	changes := false
	cmd := command("plan", "Show the changes of a reload without making them", cobra.NoArgs,
		func(ctx context.Context, c *control.Client, _ []string) (control.Plan, error) {
			p, err := control.GetPlan.From(ctx, c)
			changes = len(p.Changes) > 0
			return p, err
		}, planned)
	cmd.Long = "Show the changes that a reload would make, and the connected hosts that it would " +
		"disconnect or make wait. The exit code is 0 if there is nothing to do, 3 if there are " +
		"changes, and 1 after an error."
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := run(cmd, args); err != nil || !changes {
			return err
		}
		return ErrChanges
	}
	return cmd
}

func disconnectCommand() *cobra.Command {
	cmd := command("disconnect HOST_NQN [SUBSYSTEM_NQN]", "End the associations of a host",
		cobra.RangeArgs(1, 2),
		func(ctx context.Context, c *control.Client, args []string) (control.Disconnected, error) {
			d := control.Disconnect{Host: args[0]}
			if len(args) == 2 {
				d.Subsystem = args[1]
			}
			return control.PostDisconnect.To(ctx, c, d)
		},
		func(t *table, d control.Disconnected) {
			t.line(count(d.Controllers, "association") + " ended")
		})
	cmd.Long = "End the associations of a host with all subsystems, or with one. A host that is " +
		"still allowed connects again. To prevent that, delete it from the configuration and " +
		"reload first."
	return cmd
}

func namespaceCommand() *cobra.Command {
	pause := namespaceChange("pause", "Make the commands for a namespace wait", control.PostPause)
	pause.Long = "Make the commands for a namespace wait, for instance while its storage is " +
		"copied. When this command returns, the storage is idle. Commands that wait longer than " +
		"io_timeout are given up, and hosts retry them."
	return Group("namespace", "Create, delete, resize, pause and resume a namespace",
		pause, resizeCommand(),
		namespaceChange("resume", "End a pause", control.PostResume),
		createCommand("create SUBSYSTEM_NQN NSID", "Create or change a namespace", namespaceOf),
		deleteCommand("delete SUBSYSTEM_NQN NSID", "Delete a namespace", namespaceOf))
}

func resizeCommand() *cobra.Command {
	shrink := false
	cmd := command("resize SUBSYSTEM_NQN NSID SIZE", "Change the size of a namespace in a file",
		cobra.ExactArgs(3),
		func(ctx context.Context, c *control.Client, args []string) (observed.Namespace, error) {
			id, err := namespaceID(args)
			if err != nil {
				return observed.Namespace{}, err
			}
			return control.PostResize.To(ctx, c, control.Resize{
				Subsystem: id.Subsystem, NSID: id.NSID, Size: args[2], Shrink: shrink,
			})
		},
		func(t *table, n observed.Namespace) {
			t.line(fmt.Sprintf("namespace %d of %s has %d bytes (%s)", n.NSID, n.Subsystem,
				n.SizeBytes, size(n.SizeBytes)))
			if n.ConfiguredBytes != 0 && n.ConfiguredBytes != n.SizeBytes {
				t.line(fmt.Sprintf("size in the configuration file is %d: change it to %d",
					n.ConfiguredBytes, n.SizeBytes))
			}
		})
	cmd.Long = "Change the size of a namespace in a file. A sparse file stays sparse; a file " +
		"with `preallocate: full` gets its space at once. Hosts are notified; their commands " +
		"wait for a moment. If a request has created the namespace, the target also changes " +
		"`size` in the managed directory; in your own configuration file, change `size` " +
		"yourself. Disks, volumes and files that another program resizes need no command: the " +
		"target notices within a second. With --shrink, THE DATA BEYOND THE NEW SIZE IS LOST: " +
		"shrink file systems and partitions first, on a host."
	cmd.Flags().BoolVar(&shrink, "shrink", false,
		"allow a smaller size; the data beyond it is lost")
	return cmd
}

func namespaceID(args []string) (control.NamespaceID, error) {
	nsid, err := positive[uint32]("NSID", args[1])
	return control.NamespaceID{Subsystem: args[0], NSID: nsid}, err
}

func namespaceChange(verb, short string,
	change control.Post[control.NamespaceID, observed.Namespace],
) *cobra.Command {
	return command(verb+" SUBSYSTEM_NQN NSID", short, cobra.ExactArgs(2),
		func(ctx context.Context, c *control.Client, args []string) (observed.Namespace, error) {
			id, err := namespaceID(args)
			if err != nil {
				return observed.Namespace{}, err
			}
			return change.To(ctx, c, id)
		},
		func(t *table, n observed.Namespace) {
			t.line(fmt.Sprintf("namespace %d of %s is %s", n.NSID, n.Subsystem, n.State))
		})
}

func eventsCommand() *cobra.Command {
	var o options
	follow := false
	cmd := &cobra.Command{
		Use: "events", Short: "Show the last lines of the log", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			defer c.Close()
			show := func(e observed.Event) error { return printEvent(cmd.OutOrStdout(), &o, e) }
			if follow {
				return stopped(c.Follow(cmd.Context(), show))
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), readTimeout)
			defer cancel()
			list, err := control.GetEvents.From(ctx, c)
			for i := 0; i < len(list) && err == nil; i++ {
				err = show(list[i])
			}
			return err
		},
	}
	o.add(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "show new lines until interrupted")
	return cmd
}

// stopped explains the error of a target that ends while it sends events or commands.
func stopped(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the target has stopped")
	}
	return err
}

func printEvent(w io.Writer, o *options, e observed.Event) error {
	if o.output == "json" {
		return json.NewEncoder(w).Encode(e) // one per line
	}
	_, err := fmt.Fprintf(w, "%s %-5s %s%s\n", stamp(e.Time), e.Level, plain(e.Message),
		attributes(" ", e.Attributes))
	return err
}

func manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write manual pages to a directory", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1"}, args[0])
		},
	}
}
