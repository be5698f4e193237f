package main

import (
	_ "embed"
	"fmt"
	"io"
	"math"
	"slices"
	"text/template"
)

// The plot has one bar per row, with the ratio, its spread and the figures behind it. A plotting
// library would add nine modules for a rectangle and a line per row.

const (
	svgRow   = 24  // pixels of a row
	svgLeft  = 370 // start of the bars
	svgUnit  = 300 // pixels of the ratio 1
	svgMost  = 2.0 // largest ratio shown
	svgWidth = svgLeft + int(svgUnit*svgMost) + 330
)

//go:embed plot.svg.tmpl
var svgText string

var svgTemplate = template.Must(template.New("plot").
	Funcs(template.FuncMap{"xml": template.HTMLEscapeString}).Parse(svgText))

type svgBar struct {
	Name, Figures, Fill        string
	Drawn                      bool
	Y, Text, Middle, High, Low int
	Width, From, To, Wanted    int
}

type svgMark struct {
	X    int
	Text string
}

func svgX(ratio float64) int { return svgLeft + int(svgUnit*math.Min(ratio, svgMost)) }

func (p *report) writeSVG(w io.Writer) error {
	const top = 84
	// Rows without IOPS only have figures in the checks.
	rows := slices.DeleteFunc(slices.Clone(p.Rows), func(r row) bool {
		_, ok := r.Target["iops"]
		return !ok && len(r.Limit) == 0
	})
	bottom := top + svgRow*len(rows)
	plot := struct {
		Title, Subtitle, Machine                              string
		Width, Height, Bottom, Below, Left, Label, Right, One int
		Marks                                                 []svgMark
		Bars                                                  []svgBar
	}{
		Title: p.Title, Machine: p.Date + ": " + p.Machine.String(),
		Subtitle: fmt.Sprintf(
			"IOPS of the target over %s: median of %d alternating rounds of %v s, "+
				"black: minimum to maximum, red: bound", p.Reference, p.Rounds, p.Seconds),
		Width: svgWidth, Height: bottom + 30, Bottom: bottom, Below: bottom + 18, Left: svgLeft,
		Label: svgLeft - 8, Right: svgX(svgMost) + 12, One: svgX(1),
	}
	for r := 0.0; r <= svgMost; r += 0.25 {
		plot.Marks = append(plot.Marks, svgMark{svgX(r), fmt.Sprintf("%.2f", r)})
	}
	for i, r := range rows {
		y := top + i*svgRow
		b := svgBar{
			Name: r.Workload, Fill: "#4a7fb5", Y: y + 4, Text: y + 16, Middle: y + 11, High: y + 1,
			Low: y + 21,
		}
		if r.Group != "" {
			b.Name = r.Group + ": " + b.Name
		}
		if r.Ratio != nil {
			b.Drawn = true
			b.Width = svgX(r.Ratio.Median) - svgLeft
			b.From, b.To = svgX(r.Ratio.Min), svgX(r.Ratio.Max)
			b.Figures = fmt.Sprintf("%.2f · ", r.Ratio.Median)
		}
		if r.AtLeast > 0 {
			b.Wanted = svgX(r.AtLeast)
		}
		if s, ok := r.Target["iops"]; ok {
			b.Figures += fmt.Sprintf("%.1f kIOPS, %.0f MiB/s, p99 %.0f µs", s.Median/1e3,
				s.Median*float64(r.Size)/(1<<20), r.Target["p99_us"].Median)
		}
		for name, unit := range map[string]string{"mib_s": "MiB/s", "latency_us": "µs"} {
			if s, ok := r.Limit[name]; ok {
				b.Figures += fmt.Sprintf("%.1f %s", s.Median, unit)
			}
		}
		plot.Bars = append(plot.Bars, b)
	}
	return svgTemplate.Execute(w, plot)
}
