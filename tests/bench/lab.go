package main

import (
	"fmt"
	"os"
	"strings"
)

// reportLab makes the table, report and plot of the records in a file. Lines that begin with # are
// notes; "#rounds N SECONDS" and "#load L" describe the run.
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
	p := newReport("Linux host in the lab: nvmf-target and the kernel's target in one boot",
		"nvmet", records, loads)
	p.Rounds, p.Seconds, p.Notes = rounds, seconds, notes
	p.evaluate(labBounds(), records, o.filter == "")
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
