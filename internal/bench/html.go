package bench

import (
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"time"

	_ "embed"

	"github.com/nvmf-target/nvmf-target/internal/histogram"
)

//go:embed report.html.tmpl
var page string

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"duration": duration, "number": number, "charts": charts,
	"mib":   func(v float64) string { return fmt.Sprintf("%.1f", v/(1<<20)) },
	"kinds": (*Group).named,
	"cpu":   (*Run).cpu, "late": (*Group).late,
}).Parse(page))

// WriteHTML writes a report as a self-contained page.
func (r *Report) WriteHTML(out io.Writer) error { return pageTemplate.Execute(out, r) }

// named are the figures of one kind of command.
type named struct {
	Kind string
	*Figures
}

func (g *Group) named() (list []named) {
	for k, f := range g.kinds() {
		if f != nil {
			list = append(list, named{kindNames[k], f})
		}
	}
	return list
}

// The plot area of a chart, in pixels.
const (
	chartWidth, chartHeight = 640, 240
	left, right             = 64, 612
	top, bottom             = 12, 206
)

// chart is a picture with lines, in the coordinates of the picture.
type chart struct {
	Title  string
	Lines  []chartLine
	Xs, Ys []mark
}

type chartLine struct{ Name, Points, Class string }

type mark struct {
	At   float64
	Text string
}

// xy are the points of a line.
type xy struct {
	name string
	x, y []float64
}

func charts(r *Run) []chart {
	most := 1e-3
	lines := make([]xy, 6)
	for i, name := range []string{"IOPS", "read", "write", "p50", "p99", "max"} {
		lines[i].name = name
	}
	for _, p := range r.Series {
		most = p.Second
		for i, v := range []float64{
			p.IOPS, p.Read / (1 << 20), p.Write / (1 << 20), p.P50, p.P99, p.Max,
		} {
			if i < 3 || v > 0 { // no latency without commands
				lines[i].x, lines[i].y = append(lines[i].x, p.Second), append(lines[i].y, v)
			}
		}
	}
	seconds := func(v float64) string { return fmt.Sprintf("%.3g s", v) }
	overTime := upTo(most, most, seconds)
	return []chart{
		newChart("IOPS over time", lines[:1], linear(lines[:1], number), overTime),
		newChart("MiB/s over time", lines[1:3], linear(lines[1:3], number), overTime),
		newChart("Latency over time", lines[3:], logarithmic(lines[3:]), overTime),
		percentiles(r), density(r),
	}
}

// axis maps values to 0..1 and has tick marks.
type axis struct {
	at    func(float64) float64
	marks []float64
	text  func(float64) string
}

// upTo is an axis from 0 to end with marks up to most.
func upTo(most, end float64, text func(float64) string) axis {
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, f := range []float64{5, 2} {
		if most/(step/f) <= 6 {
			step /= f
			break
		}
	}
	a := axis{at: func(v float64) float64 { return v / end }, text: text}
	for v := 0.0; v <= end*1.0001; v += step {
		a.marks = append(a.marks, v)
	}
	return a
}

// linear is an axis from 0 to a little above the largest value.
func linear(lines []xy, text func(float64) string) axis {
	most := 1.0
	for _, l := range lines {
		for _, v := range l.y {
			most = max(most, v)
		}
	}
	return upTo(most, most*1.05, text)
}

// logarithmic is an axis of microseconds with the decades of the values.
func logarithmic(lines []xy) axis {
	low, high := math.Inf(1), 1.0
	for _, l := range lines {
		for _, v := range l.y {
			if v > 0 {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	return decades(low, high)
}

func decades(low, high float64) axis {
	from := math.Floor(math.Log10(min(low, high)))
	to := max(math.Ceil(math.Log10(high)), from+1)
	a := axis{text: func(us float64) string {
		d := time.Duration(math.Round(us * 1e3))
		return d.String()
	}}
	a.at = func(v float64) float64 {
		return max(0, (math.Log10(max(v, 1e-3))-from)/(to-from))
	}
	for d := from; d <= to; d++ {
		a.marks = append(a.marks, math.Pow(10, d))
	}
	return a
}

func newChart(title string, lines []xy, y, x axis) chart {
	c := chart{Title: title}
	atX := func(v float64) float64 { return left + (right-left)*x.at(v) }
	atY := func(v float64) float64 { return bottom - (bottom-top)*y.at(v) }
	for i, l := range lines {
		var b strings.Builder
		for k := range l.x {
			_, _ = fmt.Fprintf(&b, "%.1f,%.1f ", atX(l.x[k]), atY(l.y[k]))
		}
		c.Lines = append(c.Lines, chartLine{l.name, b.String(), fmt.Sprintf("line%d", i)})
	}
	for _, v := range x.marks {
		c.Xs = append(c.Xs, mark{atX(v), x.text(v)})
	}
	for _, v := range y.marks {
		c.Ys = append(c.Ys, mark{atY(v), y.text(v)})
	}
	return c
}

// each calls fn with the figures of a run, by name.
func (r *Run) each(fn func(name string, f *Figures)) {
	for _, g := range r.Groups {
		for k, f := range g.kinds() {
			if f != nil {
				name := kindNames[k]
				if len(r.Groups) > 1 {
					name = g.Name + " " + name
				}
				fn(name, f)
			}
		}
	}
}

// nines is the axis of quantiles on which 90 %, 99 %, … have equal distances.
func nines() axis {
	return axis{
		at:    func(q float64) float64 { return min(1, -math.Log10(max(1-q, 1e-9))/5) },
		marks: []float64{0, .9, .99, .999, .9999, .99999},
		text:  func(q float64) string { return fmt.Sprintf("%.6g %%", q*100) },
	}
}

// percentiles charts the latency that a share of the commands does not exceed.
func percentiles(r *Run) chart {
	var lines []xy
	r.each(func(name string, f *Figures) {
		l, h := xy{name: name}, f.distribution()
		for nines := 0.0; nines <= 5; nines += .05 {
			q := 1 - math.Pow(10, -nines)
			if float64(f.Commands)*(1-q) < 1 {
				break // one command has no meaningful share
			}
			l.x, l.y = append(l.x, q), append(l.y, us(h.Quantile(q)))
		}
		lines = append(lines, l)
	})
	return newChart("Latency by percentile", lines, logarithmic(lines), nines())
}

// density charts the number of commands by latency, in parts of powers of two.
func density(r *Run) chart {
	var lines []xy
	low, high := math.Inf(1), 0.0
	r.each(func(name string, f *Figures) {
		l := xy{name: name}
		parts, _ := group(f.distribution())
		for _, p := range parts {
			l.x, l.y = append(l.x, p.us), append(l.y, p.share*100)
			low, high = min(low, p.us), max(high, p.us)
		}
		lines = append(lines, l)
	})
	percent := func(v float64) string { return fmt.Sprintf("%.3g %%", v) }
	return newChart("Share of commands by latency", lines, linear(lines, percent),
		decades(low, max(high, 1e-3)))
}

type bucket struct{ us, share float64 }

// group merges buckets into quarters of a power of two.
func group(h *histogram.Histogram) (list []bucket, n uint64) {
	n = h.Count()
	last := math.MinInt
	for middle, count := range h.All() {
		at := int(math.Floor(4 * math.Log2(max(us(middle), 1e-3))))
		for ; len(list) > 0 && last+1 < at; last++ {
			list = append(list, bucket{math.Exp2((float64(last+1) + .5) / 4), 0})
		}
		if at != last || len(list) == 0 {
			list, last = append(list, bucket{math.Exp2((float64(at) + .5) / 4), 0}), at
		}
		list[len(list)-1].share += float64(count) / float64(n)
	}
	return list, n
}
