package app

import (
	"context"
	"fmt"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/histogram"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
)

// latencyTimeout bounds the wait for the counters of reactors, which take a turn for each pair of a
// host and a namespace. Prometheus gives up after 10 s by default.
const latencyTimeout = 3 * time.Second

// latencies returns the latencies counted, nil if a reactor does not answer.
func (s *Server) latencies() []observe.LatencyInfo {
	ctx, cancel := context.WithTimeout(context.Background(), s.latencyTimeout)
	defer cancel()
	list, _ := s.target.Latencies(ctx)
	return list
}

// latencyStates returns a function that describes the latencies by latencyState or latencySummary.
func (s *Server) latencyStates(describe func(*observe.LatencyInfo) observed.Latency,
) func(context.Context) ([]observed.Latency, error) {
	return func(ctx context.Context) ([]observed.Latency, error) {
		all, err := s.target.Latencies(ctx)
		if err != nil {
			return nil, fmt.Errorf("a reactor does not answer: %w", err)
		}
		list := make([]observed.Latency, len(all))
		for i, l := range all {
			list[i] = describe(&l)
		}
		return list, nil
	}
}

func latencyState(l *observe.LatencyInfo) observed.Latency {
	out, slowest := latencySummary(l), int64(0)
	most := int64(-1)
	for i := range l.Stages {
		slowest += l.Slowest[i]
		out.Stages[i] = latencyStage(out.Stages[i].Stage, &l.Stages[i], l.Total.Sum(), l.Slowest[i])
		if sum := l.Stages[i].Sum(); sum > most {
			most, out.Dominant = sum, out.Stages[i].Stage
		}
	}
	out.Total = latencyStage("total", &l.Total, l.Total.Sum(), slowest)
	return out
}

// latencySummary returns the part that the page and doctor.Load need, without quantiles.
func latencySummary(l *observe.LatencyInfo) observed.Latency {
	out := observed.Latency{
		Host: l.HostNQN, Subsystem: l.SubNQN, NSID: l.NSID, Operation: l.Operation.String(),
		IOs: l.IOs, Errors: l.Errors, Bytes: l.Bytes, Buckets: []observed.LatencyBucket{},
	}
	for i := range l.Stages {
		out.Stages = append(out.Stages, observed.LatencyStage{
			Stage: fabric.Stage(i).String(), MeanSeconds: mean(&l.Stages[i]),
			Nanoseconds: uint64(l.Stages[i].Sum()),
		})
	}
	for middle, n := range l.Total.All() {
		out.Buckets = append(out.Buckets, observed.LatencyBucket{NS: middle, Count: n})
	}
	return out
}

func mean(h *histogram.Histogram) float64 {
	return seconds(h.Sum()) / float64(max(h.Count(), 1))
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

func latencyStage(name string, h *histogram.Histogram, of, slowest int64) observed.LatencyStage {
	return observed.LatencyStage{
		Stage: name, Share: float64(h.Sum()) / float64(max(of, 1)), MeanSeconds: mean(h),
		P50Seconds: seconds(h.Quantile(0.5)), P99Seconds: seconds(h.Quantile(0.99)),
		P999Seconds: seconds(h.Quantile(0.999)), P9999Seconds: seconds(h.Quantile(0.9999)),
		MaxSeconds: seconds(h.Max()), SlowestSeconds: seconds(slowest),
	}
}
