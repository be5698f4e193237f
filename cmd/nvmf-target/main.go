// Command nvmf-target exports block storage to Linux hosts over NVMe over Fabrics.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/cli"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/secret"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// version is set by the linker (scripts/build.sh), or is from Go's build information.
var version string

func main() {
	err := command().Execute()
	if code := cli.Exit(0); errors.As(err, &code) {
		os.Exit(int(code))
	}
	if err != nil {
		printed := make(chan struct{})
		go func() {
			fmt.Fprintln(os.Stderr, secret.Mask(err.Error()))
			close(printed)
		}()
		select {
		case <-printed:
		case <-time.After(2 * time.Second): // a full pipe
		}
		os.Exit(1)
	}
}

// The texts of "nvmf-target help".
const (
	about = `NVMe over Fabrics target: block storage for Linux hosts over RDMA and TCP.

The configuration is /etc/nvmf-target/nvmf-target.yaml, or the file given with --config.

Environment:
  NVMF_TARGET_KEY     overrides a key of the configuration outside lists, with "_" for ".":
                      NVMF_TARGET_LOG_LEVEL=debug
  NAME                in the configuration, "${NAME}" is its value
  RUNTIME_DIRECTORY, XDG_RUNTIME_DIR
                      directory of the control socket, instead of /run/nvmf-target (root)
  STATE_DIRECTORY, XDG_STATE_HOME
                      directory of the state, instead of /var/lib/nvmf-target (root)`

	examples = `  nvmf-target check FILE             # show the errors of a configuration
  nvmf-target serve FILE             # serve it until Ctrl-C
  nvmf-target disks                  # show the disks that could be exported
  nvmf-target status; nvmf-target refusals
  nvmf-target plan && nvmf-target reload
  nvmf-target help serve`
)

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "nvmf-target",
		Short: "NVMe over Fabrics target: block storage for Linux hosts over RDMA and TCP",
		Long:  about, Example: examples,
		Version:       app.Version(version),
		SilenceErrors: true, // main prints them
		SilenceUsage:  true,
	}
	var file string
	configFlag := func(c *cobra.Command) *cobra.Command {
		c.Flags().StringVarP(&file, "config", "c", "/etc/nvmf-target/nvmf-target.yaml",
			"configuration file")
		return c
	}
	// fileArgument adds FILE as an alternative to --config FILE.
	fileArgument := func(c *cobra.Command) *cobra.Command {
		c.Use += " [FILE]"
		c.Args = cobra.MaximumNArgs(1)
		c.PreRunE = func(c *cobra.Command, args []string) error {
			if len(args) == 1 && c.Flags().Changed("config") {
				return errors.New("the configuration is given twice: delete FILE or --config FILE")
			} else if len(args) == 1 {
				file = args[0]
			}
			return nil
		}
		return configFlag(c)
	}
	root.AddCommand(
		fileArgument(&cobra.Command{
			Use:   sys.Serve,
			Short: "Serve the configured subsystems until SIGTERM or SIGINT",
			Example: `  nvmf-target serve nvmf-target.yaml
  NVMF_TARGET_LOG_LEVEL=debug nvmf-target serve   # why does a host not connect?`,
			RunE: func(c *cobra.Command, _ []string) error {
				if err := sys.DropPrivileges(); err != nil {
					return err
				}
				return app.Serve(file, app.Version(version), c.OutOrStdout(), c.ErrOrStderr())
			},
		}),
		fileArgument(&cobra.Command{
			Use:   "check",
			Short: "Check a configuration and print every error and warning",
			Example: `  nvmf-target check
  nvmf-target check nvmf-target.yaml`,
			RunE: func(c *cobra.Command, _ []string) error {
				return check.File(file, os.Environ(), c.OutOrStdout())
			},
		}),
		configFlag(cli.Disks(func(c *cobra.Command) ([]observed.Disk, error) {
			return app.Disks(file, c.Flags().Changed("config"), os.Environ())
		})),
		fileArgument(cli.Doctor(func(c *cobra.Command, socket string) []doctor.Finding {
			required := c.Flags().Changed("config") || c.Flags().NArg() > 0
			return check.Doctor(file, required, socket, os.Environ())
		})),
		&cobra.Command{
			Use:   "schema",
			Short: "Print the JSON Schema of the configuration file, for editors",
			Args:  cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return app.Schema(c.OutOrStdout())
			},
		},
		convertCommand(),
		cli.Bench(app.Version(version), app.Verbs),
		&cobra.Command{
			Use:   "version",
			Short: "Print the version and the built-in features",
			Args:  cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				_, err := fmt.Fprintln(c.OutOrStdout(), app.Describe(app.Version(version)))
				return err
			},
		},
	)
	root.AddCommand(cli.Commands()...)
	return root
}

func convertCommand() *cobra.Command {
	from := func(name, use, short string) *cobra.Command {
		k := app.Converters[name]
		return &cobra.Command{
			Use: name + " [" + use + "]", Short: short, Args: cobra.MaximumNArgs(1),
			Long: short + ". Without an argument it reads the running target at " + k.Default +
				". Nothing is changed.",
			RunE: func(c *cobra.Command, args []string) error {
				path := k.Default
				if len(args) > 0 {
					path = args[0]
				}
				return k.Convert(c.Context(), path, c.OutOrStdout(), c.ErrOrStderr())
			},
		}
	}
	c := cli.Group("convert", "Convert the configuration of another target",
		from("nvmet", "FILE|DIR", "Convert a file saved by nvmetcli (nvmetcli save FILE), or "+
			"nvmet in configfs"),
		from("spdk", "FILE|SOCKET", "Convert a file saved by SPDK (rpc.py save_config >FILE), or "+
			"a running SPDK through its RPC socket"))
	c.Long = "Convert the configuration of another target, and print the result. Items without " +
		"a counterpart are listed at the beginning of the result and on standard error. No host " +
		"gets access to more data than before, except where the list says so."
	return c
}
