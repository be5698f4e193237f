package metrics

import (
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nvmf-target/nvmf-target/internal/histogram"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// prefix begins every name. Names and labels do not change: alerts and dashboards use them.
const prefix = "nvmf_target_"

// sink receives the metrics of one scrape. labels are their common labels: names, each with its
// value.
type sink struct {
	out    chan<- prometheus.Metric
	labels []string
}

// with returns a sink for metrics with these labels.
func (s sink) with(labels ...string) sink { return sink{s.out, labels} }

func (s sink) ofNamespace(nqn string, nsid uint32, more ...string) sink {
	return s.with(append([]string{"subsystem", nqn, "nsid", strconv.Itoa(int(nsid))}, more...)...)
}

// gauge adds a gauge; v is as for value.
func (s sink) gauge(name, help string, v any, labels ...string) {
	s.add(name, help, prometheus.GaugeValue, v, labels)
}

func (s sink) counter(name, help string, v any, labels ...string) {
	s.add(name, help, prometheus.CounterValue, v, labels)
}

// add panics if the labels do not fit, which becomes an error of the scrape.
func (s sink) add(name, help string, t prometheus.ValueType, v any, labels []string) {
	d, values := s.describe(name, help, labels)
	s.out <- prometheus.MustNewConstMetric(d, t, value(v), values...)
}

// each adds a counter for each value of a label.
func each[T any](s sink, name, help, label string, values map[string]T) {
	for v, n := range values {
		s.counter(name, help, n, label, v)
	}
}

// value returns a number; 1 for true and 0 for false. No counter of log 02h exceeds 64 bits in the
// life of a drive.
func value(v any) float64 {
	switch v := v.(type) {
	case bool:
		if v {
			return 1
		}
		return 0
	case nvme.Uint128:
		n, ok := v.Uint64()
		if !ok {
			return math.MaxUint64
		}
		return float64(n)
	}
	return reflect.ValueOf(v).Convert(reflect.TypeFor[float64]()).Float()
}

// descs has the description of each metric by its name.
var descs sync.Map

// describe returns the description of a metric, and the values of its labels.
func (s sink) describe(name, help string, labels []string) (*prometheus.Desc, []string) {
	var names, values []string
	for label := range slices.Chunk(slices.Concat(s.labels, labels), 2) {
		names, values = append(names, label[0]), append(values, label[1])
	}
	d, known := descs.Load(name)
	if !known {
		d, _ = descs.LoadOrStore(name, prometheus.NewDesc(prefix+name, help, names, nil))
	}
	return d.(*prometheus.Desc), values
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

// text makes the name of a drive or a build valid as a label.
func text(s string) string { return strings.ToValidUTF8(s, "?") }
