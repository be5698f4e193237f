package bench

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/histogram"
	"github.com/nvmf-target/nvmf-target/internal/load"
)

// format is the version of the JSON format of reports.
const format = 1

// Report is the result of a measurement, as JSON.
type Report struct {
	Format   int       `json:"format"`
	Version  string    `json:"version"`
	Began    time.Time `json:"began"`
	Machine  Machine   `json:"machine"`
	Target   *Target   `json:"target"`
	Settings Settings  `json:"settings"`
	Runs     []*Run    `json:"runs"`
	// Error is the reason for an incomplete report, else "".
	Error string `json:"error,omitempty"`
}

// Machine describes the machine of the initiator.
type Machine struct {
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Kernel string `json:"kernel"`
}

// Run is a part of the measurement.
type Run struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	// User and System are the CPU time of this process, including its polling threads.
	User   float64  `json:"user_seconds"`
	System float64  `json:"system_seconds"`
	Groups []*Group `json:"groups"`
	Series []Point  `json:"series"`
}

// Group is a set of queues with the same workload.
type Group struct {
	Name   string   `json:"name"`
	Queues int      `json:"queues"`
	Depth  int      `json:"iodepth"` // of each queue
	Reads  *Figures `json:"reads,omitempty"`
	Writes *Figures `json:"writes,omitempty"`
	Flush  *Figures `json:"flushes,omitempty"`
	// Late is the number of I/Os that were due by the rate but had not begun by the end.
	Late uint64 `json:"late,omitempty"`
}

// kinds returns the figures by kind, nil for kinds without commands.
func (g *Group) kinds() [load.Kinds]*Figures {
	return [...]*Figures{load.Read: g.Reads, load.Write: g.Writes, load.Flush: g.Flush}
}

var kindNames = [load.Kinds]string{"reads", "writes", "flushes"}

// Figures describe the commands of one kind. Latencies are in microseconds.
type Figures struct {
	Commands  uint64  `json:"commands"`
	Bytes     uint64  `json:"bytes"`
	IOPS      float64 `json:"iops"`
	Bandwidth float64 `json:"bytes_per_second"`
	Mean      float64 `json:"mean_us"`
	P50       float64 `json:"p50_us"`
	P90       float64 `json:"p90_us"`
	P99       float64 `json:"p99_us"`
	P999      float64 `json:"p99.9_us"`
	P9999     float64 `json:"p99.99_us"`
	Max       float64 `json:"max_us"`
	// Histogram has, for each bucket, its middle in nanoseconds and its number of commands.
	Histogram [][2]uint64 `json:"histogram"`
}

// Point is an interval of a run.
type Point struct {
	Second float64 `json:"second"` // its end
	IOPS   float64 `json:"iops"`
	Read   float64 `json:"read_bytes_per_second"`
	Write  float64 `json:"write_bytes_per_second"`
	P50    float64 `json:"p50_us"`
	P99    float64 `json:"p99_us"`
	Max    float64 `json:"max_us"`
}

func us(ns int64) float64 { return float64(ns) / 1e3 }

// figures returns nil if there were no commands.
func figures(c *load.Count, elapsed time.Duration) *Figures {
	if c.Latency.Count() == 0 {
		return nil
	}
	return NewFigures(&c.Latency, c.Bytes, elapsed)
}

// NewFigures returns the figures of commands that moved this many bytes in elapsed.
func NewFigures(h *histogram.Histogram, bytes uint64, elapsed time.Duration) *Figures {
	n := h.Count()
	f := &Figures{
		Commands: n, Bytes: bytes, IOPS: float64(n) / elapsed.Seconds(),
		Bandwidth: float64(bytes) / elapsed.Seconds(), Mean: us(h.Sum()) / float64(n),
		Max: us(h.Max()),
	}
	for q, to := range map[float64]*float64{
		.5: &f.P50, .9: &f.P90, .99: &f.P99, .999: &f.P999, .9999: &f.P9999,
	} {
		*to = us(h.Quantile(q))
	}
	for middle, n := range h.All() {
		f.Histogram = append(f.Histogram, [2]uint64{uint64(middle), n})
	}
	return f
}

// columns are the names of figures in tables.
var columns = strings.Fields("IOPS MiB/s mean p50 p90 p99 p99.9 p99.99 max")

// row returns the figures of the columns, as numbers and as text.
func (f *Figures) row() (list []float64, texts []string) {
	list = []float64{
		f.IOPS, f.Bandwidth / (1 << 20), f.Mean, f.P50, f.P90, f.P99, f.P999, f.P9999, f.Max,
	}
	texts = []string{number(list[0]), fmt.Sprintf("%.1f", list[1])}
	for _, us := range list[2:] {
		texts = append(texts, duration(us))
	}
	return list, texts
}

// points returns the points of a series up to the end of a run.
func points(s *load.Series, elapsed time.Duration) (list []Point) {
	for i := range s.Cells() {
		c := &s.Cells()[i]
		begin, end := time.Duration(i)*s.Interval, time.Duration(i+1)*s.Interval
		d := min(end, elapsed) - begin
		if d < s.Interval/4 {
			break // too short for a rate
		}
		h := &c.Latency
		list = append(list, Point{
			Second: (begin + d).Seconds(), IOPS: float64(h.Count()) / d.Seconds(),
			Read:  float64(c.Bytes[load.Read]) / d.Seconds(),
			Write: float64(c.Bytes[load.Write]) / d.Seconds(), P50: us(h.Quantile(.5)),
			P99: us(h.Quantile(.99)), Max: us(h.Max()),
		})
	}
	return list
}

// ThisMachine describes this machine, the kernel by its version without the build.
func ThisMachine() Machine {
	m := Machine{CPU: "unknown", CPUs: runtime.NumCPU()}
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel, _, _ = strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	}
	return m
}

// size formats a number of bytes for people.
func size(n float64) string {
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if n < 1024 {
			return fmt.Sprintf("%.4g %s", n, unit)
		}
		n /= 1024
	}
	return fmt.Sprintf("%.4g TiB", n)
}

// duration formats microseconds for people.
func duration(us float64) string {
	switch {
	case us < 1e3:
		return fmt.Sprintf("%.1f µs", us)
	case us < 1e6:
		return fmt.Sprintf("%.2f ms", us/1e3)
	}
	return fmt.Sprintf("%.2f s", us/1e6)
}

// number formats a rate for people.
func number(n float64) string {
	switch {
	case n < 1e4:
		return fmt.Sprintf("%.0f", n)
	case n < 1e6:
		return fmt.Sprintf("%.1fk", n/1e3)
	}
	return fmt.Sprintf("%.2fM", n/1e6)
}

// WriteText writes a report for people.
func (r *Report) WriteText(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(t, "%s\nsecurity: %s; seed %d\n", r.Target, r.Target.Security,
		r.Settings.Seed)
	for _, run := range r.Runs {
		_, _ = fmt.Fprintf(t, "\n%s: %.1f s, CPU time of this process %s\n", run.Name, run.Seconds,
			run.cpu())
		_, _ = fmt.Fprintf(t, "\t%s\n", strings.Join(columns, "\t"))
		for _, g := range run.Groups {
			for _, n := range g.rows() {
				_, _ = fmt.Fprintf(t, "%s %s\t%s\n", g.Name, n.Kind, strings.Join(n.Row, "\t"))
			}
			if g.Late > 0 {
				_, _ = fmt.Fprintln(t, g.late())
			}
		}
	}
	if r.Error != "" {
		_, _ = fmt.Fprintf(t, "\nNOT COMPLETE: %s\n", r.Error)
	}
	return t.Flush()
}

// named are the columns of one kind of command.
type named struct {
	Kind string
	Row  []string
}

func (g *Group) rows() (list []named) {
	for k, f := range g.kinds() {
		if f != nil {
			_, texts := f.row()
			list = append(list, named{kindNames[k], texts})
		}
	}
	return list
}

func (g *Group) late() string {
	return fmt.Sprintf("%s: the rate was not reached: %d I/Os were due and not begun", g.Name,
		g.Late)
}

// cpu formats the CPU time of a run, in total and as a share of its time.
func (r *Run) cpu() string {
	return fmt.Sprintf("%.1f s (%.0f %% of a CPU: %.0f user, %.0f system)", r.User+r.System,
		(r.User+r.System)/r.Seconds*100, r.User/r.Seconds*100, r.System/r.Seconds*100)
}

// WriteJSON writes a report for programs.
func (r *Report) WriteJSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// maxReport is the size limit of a file with a report, in bytes.
const maxReport = 64 << 20

// ReadReport reads a report written by WriteJSON.
func ReadReport(name string) (*Report, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := new(Report)
	err = json.NewDecoder(io.LimitReader(f, maxReport)).Decode(r)
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New(name + ": is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errors.New(name + ": is cut off: write it again with nvmf-target bench --json")
	case err != nil:
		return nil, fmt.Errorf("%s: is not a report of nvmf-target bench --json: %w", name, err)
	case r.Format == 0, !r.whole():
		return nil, errors.New(name + ": is not a report of nvmf-target bench --json")
	case r.Format != format:
		return nil, fmt.Errorf("%s: is not a report of this version: format %d, want %d", name,
			r.Format, format)
	}
	return r, nil
}

// whole reports whether every pointer of a report that must be set is set.
func (r *Report) whole() bool {
	return r.Target != nil && !slices.ContainsFunc(r.Runs,
		func(run *Run) bool { return run == nil || slices.Contains(run.Groups, nil) })
}

// Title describes the report in one line.
func (r *Report) Title() string {
	s := &r.Settings
	return cmp.Or(s.Profile, fmt.Sprintf("%s bs=%s iodepth=%d numjobs=%d", s.RW, s.BlockSize,
		s.Depth, s.Jobs))
}
