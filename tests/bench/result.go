package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// result is one measurement.
type result struct {
	ops     uint64
	elapsed time.Duration
	latency histogram
	// user and system are CPU time of the server process during the measurement.
	user, system time.Duration
}

func (r result) iops() float64 { return float64(r.ops) / r.elapsed.Seconds() }

// row is one workload's measurements: floor[i] and target[i] were taken one after the other.
type row struct {
	workload      workload
	floor, target []result
}

// spread is median, least and largest of values.
type spread struct{ median, min, max float64 }

func spreadOf(values []float64) spread {
	s := slices.Clone(values)
	slices.Sort(s)
	return spread{s[len(s)/2], s[0], s[len(s)-1]}
}

func collect(results []result, f func(result) float64) spread {
	values := make([]float64, len(results))
	for i, r := range results {
		values[i] = f(r)
	}
	return spreadOf(values)
}

// ratios are target over floor, round by round.
func (r row) ratios() spread {
	values := make([]float64, len(r.target))
	for i := range values {
		values[i] = r.target[i].iops() / r.floor[i].iops()
	}
	return spreadOf(values)
}

// perIO is microseconds of CPU time an I/O costs the target.
func perIO(cpu func(result) time.Duration) func(result) float64 {
	return func(r result) float64 { return cpu(r).Seconds() * 1e6 / float64(max(r.ops, 1)) }
}

func writeTable(w io.Writer, rows []row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(t, "workload\tfloor kIOPS\ttarget kIOPS\tmin..max\tratio\tmin..max\tuser µs/IO\tsystem µs/IO\tp50 µs\tp99\tp99.9\tmax\t")
	for _, r := range rows {
		floor, target, ratio := collect(r.floor, result.iops), collect(r.target, result.iops), r.ratios()
		user := collect(r.target, perIO(func(r result) time.Duration { return r.user }))
		system := collect(r.target, perIO(func(r result) time.Duration { return r.system }))
		_, _ = fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f..%.1f\t%.2f\t%.2f..%.2f\t%.2f\t%.2f\t", r.workload.name, floor.median/1e3,
			target.median/1e3, target.min/1e3, target.max/1e3, ratio.median, ratio.min, ratio.max, user.median, system.median)
		for _, q := range []float64{0.5, 0.99, 0.999, 1} {
			_, _ = fmt.Fprintf(t, "%.1f\t", collect(r.target, func(r result) float64 { return r.latency.quantile(q) / 1e3 }).median)
		}
		_, _ = fmt.Fprintln(t)
	}
	return t.Flush()
}
