package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	measure "github.com/nvmf-target/nvmf-target/internal/bench"
)

// report is printed as a table and written as JSON and SVG.
type report struct {
	Title string `json:"title"`
	// Reference is the name of the comparison.
	Reference string   `json:"reference"`
	Machine   machine  `json:"machine"`
	Date      string   `json:"date"`
	Rounds    int      `json:"rounds"`
	Seconds   float64  `json:"seconds_each"`
	Rows      []row    `json:"rows"`
	Checks    []check  `json:"checks,omitempty"`
	Notes     []string `json:"notes,omitempty"`
}

// machine describes the machine of the measurement.
type machine struct {
	measure.Machine
	Go string `json:"go"`
	// Load is the load average of one minute before the rounds, which includes the measurements
	// themselves.
	Load *spread `json:"load_average,omitempty"`
	// Loads are the load averages before each round.
	Loads []float64 `json:"load_before_each_round,omitempty"`
}

func (m machine) String() string {
	s := fmt.Sprintf("%s, %d CPUs, Linux %s, %s", m.CPU, m.CPUs, m.Kernel, m.Go)
	if m.Load != nil {
		s += fmt.Sprintf(", load average before each round %s", rounds(m.Loads))
	}
	return s
}

func thisMachine(loads []float64) machine {
	m := machine{Machine: measure.ThisMachine(), Go: runtime.Version()}
	if len(loads) > 0 {
		s := spreadOf(loads)
		m.Load, m.Loads = &s, loads
	}
	return m
}

// newReport makes a report on records, without checks.
func newReport(title, reference string, list []record, loads []float64) *report {
	return &report{
		Title: title, Reference: reference, Machine: thisMachine(loads),
		Date: time.Now().UTC().Format(time.DateOnly), Rows: rowsOf(list),
	}
}

// evaluate adds the checks.
func (p *report) evaluate(bounds []bound, records []record, everything bool) {
	p.Checks = evaluateAll(bounds, records, everything)
	for i := range p.Rows {
		for _, b := range bounds {
			if b.row == p.Rows[i].Workload && b.group == p.Rows[i].Group {
				p.Rows[i].AtLeast = b.ratio
			}
		}
	}
}

// column is a column of the table. cell returns "" for a row without a value.
type column struct {
	head string
	cell func(r row) string
}

// value shows the median of a figure.
func value(of func(r row) map[string]spread, name, format string,
	scale float64,
) func(r row) string {
	return func(r row) string {
		s, ok := of(r)[name]
		if !ok {
			return ""
		}
		return fmt.Sprintf(format, s.Median*scale)
	}
}

func target(r row) map[string]spread    { return r.Target }
func reference(r row) map[string]spread { return r.Reference }
func limit(r row) map[string]spread     { return r.Limit }

func (p *report) columns() []column {
	iops := func(show func(s spread, size int) string) func(r row) string {
		return func(r row) string {
			s, ok := r.Target["iops"]
			if !ok {
				return ""
			}
			return show(s, r.Size)
		}
	}
	ratio := func(show func(s spread) string) func(r row) string {
		return func(r row) string {
			if r.Ratio == nil {
				return ""
			}
			return show(*r.Ratio)
		}
	}
	list := []column{
		{"", func(r row) string { return r.Group }},
		{"workload", func(r row) string { return r.Workload }},
		{p.Reference + " kIOPS", value(reference, "iops", "%.1f", 1e-3)},
		{"target kIOPS", value(target, "iops", "%.1f", 1e-3)},
		{"min..max", iops(func(s spread, _ int) string {
			return fmt.Sprintf("%.1f..%.1f", s.Min/1e3, s.Max/1e3)
		})},
		{"MiB/s", iops(func(s spread, size int) string {
			return fmt.Sprintf("%.0f", s.Median*float64(size)/(1<<20))
		})},
		{"ratio", ratio(func(s spread) string { return fmt.Sprintf("%.2f", s.Median) })},
		{"min..max", ratio(func(s spread) string {
			return fmt.Sprintf("%.2f..%.2f", s.Min, s.Max)
		})},
		{"wanted", func(r row) string {
			if r.AtLeast == 0 {
				return ""
			}
			return fmt.Sprintf("%.2f", r.AtLeast)
		}},
	}
	for _, f := range []struct{ head, figure, format string }{
		{"user µs/IO", "user_us", "%.2f"},
		{"kernel µs/IO", "system_us", "%.2f"},
		{"machine µs/IO", "machine_us", "%.1f"},
		{"mean µs", "mean_us", "%.1f"},
		{"p50 µs", "p50_us", "%.1f"},
		{"p99", "p99_us", "%.1f"},
		{"p99.9", "p99.9_us", "%.1f"},
		{"max", "max_us", "%.0f"},
	} {
		list = append(list, column{f.head, value(target, f.figure, f.format, 1)})
	}
	for _, f := range []struct{ head, figure string }{
		{" machine µs/IO", "machine_us"},
		{" mean µs", "mean_us"},
		{" p50", "p50_us"},
		{" p99", "p99_us"},
		{" p99.9", "p99.9_us"},
	} {
		list = append(list, column{p.Reference + f.head, value(reference, f.figure, "%.1f", 1)})
	}
	return append(list, column{"limit MiB/s", value(limit, "mib_s", "%.0f", 1)},
		column{"limit µs", value(limit, "latency_us", "%.1f", 1)})
}

// writeTable prints the rows and columns that have values, and the checks.
func (p *report) writeTable(out io.Writer) error {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	columns := p.columns()
	const names = 2 // the columns that name a row
	shown := slices.Clone(columns[:names])
	for _, c := range columns[names:] {
		if slices.ContainsFunc(p.Rows, func(r row) bool { return c.cell(r) != "" }) {
			shown = append(shown, c)
		}
	}
	for _, c := range shown {
		_, _ = fmt.Fprintf(t, "%s\t", c.head)
	}
	_, _ = fmt.Fprintln(t)
	for _, r := range p.Rows {
		if !slices.ContainsFunc(shown[names:], func(c column) bool { return c.cell(r) != "" }) {
			continue // its figures are in the checks
		}
		for _, c := range shown {
			_, _ = fmt.Fprintf(t, "%s\t", c.cell(r))
		}
		_, _ = fmt.Fprintln(t)
	}
	_ = t.Flush()
	_, _ = fmt.Fprintf(&b,
		"Medians of %d rounds of %v s; ratio: IOPS of target over %s, round by round.\n%s\n",
		p.Rounds, p.Seconds, p.Reference, p.Machine)
	for _, n := range p.Notes {
		_, _ = fmt.Fprintln(&b, n)
	}
	if len(p.Checks) > 0 {
		_, _ = fmt.Fprintln(&b)
		p.writeChecks(&b)
	}
	_, err := out.Write(b.Bytes())
	return err
}

func (p *report) writeChecks(out io.Writer) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "result\tmedian (min..max)\twanted\tothers\tclaim")
	met := 0
	for _, c := range p.Checks {
		value, sign, detail := "", "at most", ""
		if c.Value != nil {
			value = fmt.Sprintf("%.2f (%.2f..%.2f)", c.Value.Median, c.Value.Min, c.Value.Max)
		}
		if c.AtLeast {
			sign = "at least"
		}
		if c.Detail != "" {
			detail = "; " + c.Detail
		}
		if c.Result == "met" {
			met++
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s %.2f\t%s\t%s%s\n", c.Result, value, sign, c.Bound,
			c.Peer, c.Claim, detail)
	}
	_ = t.Flush()
	_, _ = fmt.Fprintf(out, "%d of %d met.\n", met, len(p.Checks))
}

// writeFiles writes DIR/NAME.json and DIR/NAME.svg.
func (p *report) writeFiles(dir, name string) error {
	text, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	err = os.WriteFile(filepath.Join(dir, name+".json"), append(text, '\n'), 0o644)
	if err != nil {
		return err
	}
	var picture bytes.Buffer
	if err := p.writeSVG(&picture); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".svg"), picture.Bytes(), 0o644)
}
