// Command nvmf-target exports block storage to Linux hosts over NVMe over Fabrics.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/cli"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/convert"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

// version is set by the linker (scripts/build.sh); without it the build information of Go is used.
var version string

func main() {
	err := command().Execute()
	if code := cli.Exit(0); errors.As(err, &code) {
		os.Exit(int(code))
	}
	if err != nil {
		printed := make(chan struct{})
		go func() {
			fmt.Fprintln(os.Stderr, err)
			close(printed)
		}()
		select {
		case <-printed:
		case <-time.After(2 * time.Second): // a full pipe
		}
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "nvmf-target",
		Short:         "NVMe over Fabrics target: block storage for Linux hosts over RDMA and TCP",
		SilenceErrors: true, // main prints them
		SilenceUsage:  true,
	}
	var file string
	configFlag := func(c *cobra.Command) *cobra.Command {
		c.Flags().StringVarP(&file, "config", "c", "/etc/nvmf-target/nvmf-target.yaml",
			"configuration file")
		return c
	}
	root.AddCommand(
		configFlag(&cobra.Command{
			Use:   "serve",
			Short: "Serve what the configuration describes until SIGTERM or SIGINT",
			Args:  cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				if err := sys.DropPrivileges(); err != nil {
					return err
				}
				return app.Serve(file, app.Version(version), c.OutOrStdout(), c.ErrOrStderr())
			},
		}),
		configFlag(&cobra.Command{
			Use:   "check",
			Short: "Check a configuration and print every error and warning",
			Args:  cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				return app.Check(file, os.Environ(), c.OutOrStdout())
			},
		}),
		configFlag(cli.Disks(func(c *cobra.Command) ([]control.Disk, error) {
			return app.Disks(file, c.Flags().Changed("config"), os.Environ())
		})),
		configFlag(cli.Doctor(func(c *cobra.Command) []doctor.Finding {
			return app.Doctor(file, c.Flags().Changed("config"), os.Environ())
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
		&cobra.Command{
			Use:   "version",
			Short: "Print the version and what is built in",
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
	c := &cobra.Command{
		Use: "convert", Short: "Make a configuration from the one of another target",
		Long: "Make a configuration from the one of another target, on standard output. What has " +
			"no counterpart is listed at its beginning and on standard error. Nobody reaches " +
			"more data than before, except where the list says so.",
	}
	add := func(use, short string, from func(string, []byte) (*convert.Result, error)) {
		c.AddCommand(&cobra.Command{
			Use: use, Short: short, Args: cobra.ExactArgs(1),
			RunE: func(c *cobra.Command, args []string) error {
				return app.Convert(from, args[0], c.OutOrStdout(), c.ErrOrStderr())
			},
		})
	}
	add("nvmet FILE", "Convert what nvmetcli has saved (nvmetcli save FILE)", convert.NVMet)
	add("spdk FILE", "Convert what SPDK has saved (rpc.py save_config >FILE)", convert.SPDK)
	return c
}
