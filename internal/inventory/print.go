package inventory

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Print writes a table of the disks.
func Print(w io.Writer, list []*Disk) error {
	drives := 0
	for _, d := range list {
		if d.Drive() {
			drives++
		}
	}
	var b strings.Builder
	if drives == 0 {
		b.WriteString("This machine has no NVMe, SATA or SAS drive whose health could be read.")
		if len(list) == 0 {
			b.WriteString(" It has no other block device either.\n")
			_, err := io.WriteString(w, b.String())
			return err
		}
		b.WriteString(" Its block devices:\n")
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "DISK\tBUS\tMODEL\tSERIAL\tSIZE\tBLOCK\tHEALTH\tUSED BY\tEXPORT")
	for _, d := range list {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", d.Name, busText(d),
			plain(d.Model), plain(d.Serial), size(d.Size), d.BlockSize,
			d.Health, orDash(strings.Join(d.Uses, ", ")), exportText(d))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func busText(d *Disk) string {
	if d.Rotational && d.Drive() {
		return d.Bus + ", rotating"
	}
	return d.Bus
}

func exportText(d *Disk) string {
	if why := d.Exportable(); why != "" {
		return "no: " + why
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

// String returns the health in a few words: "good, 34 °C, 1200 h, 3% worn", "failing: 8 sectors
// cannot be read, ...".
func (h Health) String() string {
	notes := strings.Join(h.Notes, ", ")
	if h.State == Unknown {
		return orDash(notes)
	}
	s := [...]string{Good: "good", Warning: "warning", Failing: "failing"}[h.State]
	if notes != "" {
		s += ": " + notes
	}
	if h.Celsius != 0 {
		s += fmt.Sprintf(", %d °C", h.Celsius)
	}
	if h.Hours >= 0 {
		s += fmt.Sprintf(", %d h", h.Hours)
	}
	if h.Used >= 0 {
		s += fmt.Sprintf(", %d%% worn", h.Used)
	}
	return s
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// plain returns a text that a drive reports without what is not safe to print.
func plain(s string) string {
	clean := strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7E {
			return '?'
		}
		return r
	}, s)
	return orDash(strings.Join(strings.Fields(clean), " "))
}

// size returns a number of bytes in decimal units, as drives are sold.
func size(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"kB", "MB", "GB", "TB", "PB"} {
		if v < 1000 {
			break
		}
		v, unit = v/1000, u
	}
	if v < 10 && unit != "B" {
		return fmt.Sprintf("%.1f %s", v, unit)
	}
	return fmt.Sprintf("%.0f %s", v, unit)
}
