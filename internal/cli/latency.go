package cli

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

func latencyCommand() *cobra.Command {
	cmd := read("latency", "Show how long commands took, and where", control.GetLatency, latencies)
	cmd.Long = "Show how long the commands of each host for each namespace took, from their " +
		"arrival until the response had left, since the host first used the namespace, and how " +
		"long they were in each stage: wait (for memory or at a limit), host_data (transfer of " +
		"the data of writes), backend (the storage), response (transfer of the response and the " +
		"data of reads). The last column is the slowest command."
	return cmd
}

func latencies(t *table, list []observed.Latency) {
	if len(list) == 0 {
		t.line("no commands yet")
	}
	for i, l := range list {
		if i > 0 {
			t.line("")
		}
		host := cmp.Or(l.Host, "(other hosts)")
		t.line(plain(fmt.Sprintf("%s to %s %d: %s, %s, %s, %s", host, l.Subsystem, l.NSID,
			count(int(l.IOs), l.Operation), count(int(l.Errors), "error"), size(l.Bytes),
			"most of the time in "+l.Dominant)))
		t.row("STAGE", "SHARE", "MEAN", "P50", "P99", "P99.9", "P99.99", "MAX", "SLOWEST")
		for _, s := range append(l.Stages, l.Total) {
			t.row(s.Stage, fmt.Sprintf("%.0f%%", 100*s.Share), brief(s.MeanSeconds),
				brief(s.P50Seconds), brief(s.P99Seconds), brief(s.P999Seconds),
				brief(s.P9999Seconds), brief(s.MaxSeconds), brief(s.SlowestSeconds))
		}
	}
}

// brief formats seconds with three digits: 12.3µs.
func brief(seconds float64) string {
	d := time.Duration(math.Round(seconds * 1e9))
	unit := time.Duration(1)
	for d >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit).String()
}

// duration is brief, or "-" for zero.
func duration(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return brief(seconds)
}
