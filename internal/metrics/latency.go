package metrics

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/histogram"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
)

// latencies exports the histograms of namespaces, over all hosts, because hosts choose their NQNs.
func (c collector) latencies(s sink) {
	type key struct {
		sub  string
		nsid uint32
		op   observe.Operation
	}
	sums := map[key]*observe.Latency{}
	for _, i := range c.src.Latencies() {
		k := key{i.SubNQN, i.NSID, i.Operation}
		if sums[k] == nil {
			sums[k] = new(observe.Latency)
		}
		sums[k].Merge(i.Latency)
	}
	for k, l := range sums {
		s := s.ofNamespace(k.sub, k.nsid, "op", k.op.String())
		s.histogram("namespace_latency_seconds",
			"Time from the arrival of a command until its response has left, by operation.",
			true, &l.Total)
		for i := range l.Stages {
			s.histogram("namespace_stage_latency_seconds",
				"The part of this time that was spent in a stage.", false, &l.Stages[i],
				"stage", fabric.Stage(i).String())
		}
	}
}

// The classic buckets end at every second power of two from 4 µs to 17 s.
const firstBound, lastBound = 12, 34

// nativeSchema makes native buckets 2^(1/8) wide.
const nativeSchema = 3

// histogram adds a classic and a native histogram; Prometheus chooses one. Without buckets the
// classic one is just a sum and a count, because series cost Prometheus memory.
func (s sink) histogram(name, help string, buckets bool, h *histogram.Histogram,
	labels ...string,
) {
	d, labels := s.describe(name, help, labels)
	bounds, native, zeros := map[float64]uint64{}, map[int]int64{}, uint64(0)
	first := firstBound
	if !buckets {
		first = lastBound + 1
	}
	for bit := first; bit <= lastBound; bit += 2 {
		bounds[float64(int64(1)<<bit)/1e9] = 0
	}
	for middle, n := range h.All() {
		if middle == 0 {
			zeros += n
		} else {
			native[int(math.Ceil(math.Log2(float64(middle)/1e9)*(1<<nativeSchema)))] += int64(n)
		}
		for bit := lastBound; bit >= first && middle < 1<<bit; bit -= 2 {
			bounds[float64(int64(1)<<bit)/1e9] += n
		}
	}
	count, sum := h.Count(), float64(h.Sum())/1e9
	m, err := prometheus.NewConstNativeHistogram(d, count, sum, native, nil, zeros, nativeSchema,
		1e-9, time.Time{}, labels...)
	if err != nil {
		panic(err) // becomes an error of the scrape
	}
	s.out <- both{prometheus.MustNewConstHistogram(d, count, sum, bounds, labels...), m}
}

// both is a classic histogram and a native one.
type both struct {
	prometheus.Metric
	native prometheus.Metric
}

func (b both) Write(out *dto.Metric) error {
	var classic dto.Metric
	if err := b.Metric.Write(&classic); err != nil {
		return err
	}
	if err := b.native.Write(out); err != nil {
		return err
	}
	out.Histogram.Bucket = classic.Histogram.Bucket
	out.Histogram.CreatedTimestamp = nil
	return nil
}
