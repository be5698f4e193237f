package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/template"
)

// The plot is one bar per row: the ratio with its spread, beside a line at 1, and the figures
// behind it as text. A plotting library would bring nine modules, fonts among them, for what is a
// rectangle and a line each.

const (
	svgRow   = 24  // pixels of a row
	svgLeft  = 370 // where bars begin
	svgUnit  = 300 // pixels of the ratio 1
	svgMost  = 2.0 // ratios beyond are cut
	svgWidth = svgLeft + int(svgUnit*svgMost) + 330
)

var svgTemplate = template.Must(template.New("plot").Funcs(template.FuncMap{"xml": template.HTMLEscapeString}).Parse(`<svg xmlns="http://www.w3.org/2000/svg" width="{{.Width}}" height="{{.Height}}" viewBox="0 0 {{.Width}} {{.Height}}" font-family="sans-serif" font-size="13">
<rect width="100%" height="100%" fill="#fff"/>
<text x="12" y="26" font-size="18" font-weight="bold">{{xml .Title}}</text>
<text x="12" y="46" fill="#555">{{xml .Subtitle}}</text>
<text x="12" y="64" fill="#555">{{xml .Machine}}</text>
{{range .Marks}}<line x1="{{.X}}" x2="{{.X}}" y1="78" y2="{{$.Bottom}}" stroke="#ddd"/><text x="{{.X}}" y="{{$.Below}}" text-anchor="middle" fill="#555">{{.Text}}</text>
{{end}}{{range .Bars}}<text x="{{$.Label}}" y="{{.Text}}" text-anchor="end">{{xml .Name}}</text>
{{if .Drawn}}<rect x="{{$.Left}}" y="{{.Y}}" width="{{.Width}}" height="14" fill="{{.Fill}}"/><line x1="{{.From}}" x2="{{.To}}" y1="{{.Middle}}" y2="{{.Middle}}" stroke="#222" stroke-width="2"/>{{if .Wanted}}<line x1="{{.Wanted}}" x2="{{.Wanted}}" y1="{{.High}}" y2="{{.Low}}" stroke="#c33" stroke-width="2"/>{{end}}
{{end}}<text x="{{$.Right}}" y="{{.Text}}" fill="#333">{{xml .Figures}}</text>
{{end}}<line x1="{{.One}}" x2="{{.One}}" y1="78" y2="{{.Bottom}}" stroke="#222"/>
</svg>
`))

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
	// all they have is in the verdicts
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
			"IOPS of the target over %s: median of %d alternating rounds of %v s, black: least to largest, red: what is wanted", p.Reference, p.Rounds, p.Seconds),
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
			b.Width, b.From, b.To = svgX(r.Ratio.Median)-svgLeft, svgX(r.Ratio.Min),
				svgX(r.Ratio.Max)
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
