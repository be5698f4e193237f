package metrics

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

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

func (s sink) gauge(name, help string, v float64, labels ...string) {
	s.add(name, help, prometheus.GaugeValue, v, labels)
}

func (s sink) counter(name, help string, v float64, labels ...string) {
	s.add(name, help, prometheus.CounterValue, v, labels)
}

// add panics if the labels do not fit, which becomes an error of the scrape.
func (s sink) add(name, help string, t prometheus.ValueType, v float64, labels []string) {
	d, values := s.describe(name, help, labels)
	s.out <- prometheus.MustNewConstMetric(d, t, v, values...)
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

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// number converts a counter of log 02h; none exceeds 64 bits in the life of a drive.
func number(u nvme.Uint128) float64 {
	v, ok := u.Uint64()
	if !ok {
		return math.MaxUint64
	}
	return float64(v)
}

// text makes the name of a drive or a build valid as a label.
func text(s string) string { return strings.ToValidUTF8(s, "?") }
