package main

import (
	"fmt"
	"os"
	"strings"
)

// labWanted is what a row of the lab is to reach of nvmet, by the depth in its name; with one CPU at depth 1 latency counts instead.
func labWanted(r row) float64 {
	if strings.Contains(r.Workload, "QD 1 ") || strings.HasSuffix(r.Workload, "QD 1") || r.Reference["iops"].Median == 0 {
		return 0
	}
	return 1
}

// labLimits are perftest's programs that move data the same way: the target reads by RDMA WRITE and writes by RDMA READ.
var labLimits = []struct{ workload, limit string }{
	{"128K read QD 16", "ib_write_bw 128K"},
	{"128K write QD 16", "ib_read_bw 128K"},
	{"1M read QD 16", "ib_write_bw 1M"},
	{"1M write QD 16", "ib_read_bw 1M"},
}

// reportLab makes table, report and plot of the records in a file; lines that begin with # are notes, "#rounds N SECONDS" and
// "#load L" tell about the run.
func reportLab(o options, file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var notes, lines []string
	var loads []float64
	rounds, seconds := 0, 0.0
	for line := range strings.Lines(string(b)) {
		var load float64
		switch {
		case !strings.HasPrefix(line, "#"):
			lines = append(lines, line)
		case scan(line, "#load %f", &load):
			loads = append(loads, load)
		case scan(line, "#rounds %d %f", &rounds, &seconds):
		default:
			notes = append(notes, strings.TrimSpace(line[1:]))
		}
	}
	records, err := readRecords(strings.NewReader(strings.Join(lines, "")))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	p, err := newReport("Linux host in the lab: nvmf-target beside the kernel's target, one boot", "nvmet", records, loads, rounds, 0)
	if err != nil {
		return err
	}
	p.Seconds, p.Notes = seconds, notes
	for i := range p.Rows {
		p.Rows[i].AtLeast = labWanted(p.Rows[i])
	}
	p.Checks = labChecks(p.Rows, records)
	if o.out != "" {
		if err := p.writeFiles(o.out, "lab"); err != nil {
			return err
		}
	}
	return p.writeTable(os.Stdout)
}

func scan(line, format string, a ...any) bool {
	n, err := fmt.Sscanf(line, format, a...)
	return err == nil && n == len(a)
}

// labChecks compare latency at depth 1 with nvmet's, and large transfers with what perftest moves.
func labChecks(rows []row, records []record) []check {
	var list []check
	add := func(what string, values []float64, bound float64, atLeast bool) {
		if len(values) > 0 {
			list = append(list, check{What: what, Value: spreadOf(values), Bound: bound, AtLeast: atLeast})
		}
	}
	groups := map[string]bool{}
	for _, r := range rows {
		if groups[r.Group] {
			continue
		}
		groups[r.Group] = true
		of := func(workload, who, figure string) []float64 { return series(records, r.Group, workload, who, figure) }
		const single = "4K random read QD 1"
		add(r.Group+": "+single+": p50 over nvmet's", over(of(single, whoTarget, "p50_us"), of(single, whoReference, "p50_us")), 1.5, false)
		for _, l := range labLimits {
			limit := of(l.limit, whoLimit, "mib_s")
			moved := of(l.workload, whoTarget, "mib_s")
			if len(limit) > 0 && len(moved) > 0 {
				best := spreadOf(limit).Median
				for i := range moved {
					moved[i] /= best
				}
				add(r.Group+": "+l.workload+" over "+l.limit, moved, 0.9, true)
			}
		}
	}
	return list
}
