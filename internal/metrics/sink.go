package metrics

import (
	"math"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nvmf-target/nvmf-target/nvme"
)

// sink receives the metrics of one scrape, with the values of their common labels.
type sink struct {
	out    chan<- prometheus.Metric
	labels []string
}

// of returns a sink for metrics with these values of their first labels.
func (s sink) of(labels ...string) sink { return sink{s.out, labels} }

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.add(d, prometheus.GaugeValue, v, labels)
}

func (s sink) counter(d *prometheus.Desc, v float64, labels ...string) {
	s.add(d, prometheus.CounterValue, v, labels)
}

// add panics if the labels do not fit, which becomes an error of the scrape.
func (s sink) add(d *prometheus.Desc, t prometheus.ValueType, v float64, labels []string) {
	s.out <- prometheus.MustNewConstMetric(d, t, v,
		append(s.labels[:len(s.labels):len(s.labels)], labels...)...)
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
