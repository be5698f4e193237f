package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// Disks makes the command that lists the disks of this machine. The running target lists them.
// Without a target, or with a configuration file, local does.
func Disks(local func(*cobra.Command) ([]observed.Disk, error)) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "disks",
		Short: "List the disks of this machine, their health, and whether they can be exported",
		Long: "List the disks of this machine, their health, their users, and whether they can " +
			"be exported. The answer comes from the running target, which may see more than " +
			"this user. Without a running target, or with --config, the command finds the disks " +
			"itself.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			defer c.Close()
			var list []observed.Disk
			look := cmd.Flags().Changed("config")
			if !look {
				list, err = control.GetDisks.From(cmd.Context(), c)
				_, none := errors.AsType[*control.NoTargetError](err)
				look = none && !cmd.Flags().Changed("socket")
			}
			if look {
				list, err = local(cmd)
			}
			if err != nil {
				return err
			}
			return printed(cmd.OutOrStdout(), &o, list, disks)
		},
	}
	o.add(cmd)
	return cmd
}

func disks(t *table, list []observed.Disk) {
	if !slices.ContainsFunc(list, observed.Disk.IsDrive) {
		text := "This machine has no NVMe, SATA or SAS drive with readable health data."
		if len(list) == 0 {
			t.line(text + " It has no other block device either.")
			return
		}
		t.line(text + " Its block devices:")
	}
	t.row("DISK", "BUS", "MODEL", "SERIAL", "SIZE", "BLOCK", "HEALTH", "USED BY", "EXPORT",
		"PATH")
	for _, d := range list {
		bus := d.Bus
		if d.Rotational && d.IsDrive() {
			bus += ", rotating"
		}
		t.row("/dev/"+d.Name, bus, reported(d.Model), reported(d.Serial), size(d.SizeBytes),
			d.BlockSizeBytes, health(d.Health), or(strings.Join(d.Uses, ", ")), export(d),
			or(d.Path))
	}
}

func export(d observed.Disk) string {
	if d.NotExportable != "" {
		return "no: " + d.NotExportable
	}
	s := "yes"
	if d.ReadOnly {
		s += ", read-only"
	}
	if n := len(d.Partitions); n > 0 {
		s += fmt.Sprintf(", but it has partitions: %d", n)
	}
	return s
}

// health summarizes health: "good, 34 °C, 1200 h, 3% worn", "failing: 8 sectors cannot ...".
func health(h observed.DiskHealth) string {
	notes := strings.Join(h.Notes, ", ")
	if h.State == "unknown" {
		return or(notes)
	}
	s := h.State
	if notes != "" {
		s += ": " + notes
	}
	if h.Celsius != 0 {
		s += fmt.Sprintf(", %d °C", h.Celsius)
	}
	if h.PowerOnHours >= 0 {
		s += fmt.Sprintf(", %d h", h.PowerOnHours)
	}
	if h.UsedPercent >= 0 {
		s += fmt.Sprintf(", %d%% worn", h.UsedPercent)
	}
	return s
}

// reported returns a text of a drive without characters that are unsafe to print.
func reported(s string) string {
	clean := strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7E {
			return '?'
		}
		return r
	}, s)
	return or(strings.Join(strings.Fields(clean), " "))
}
