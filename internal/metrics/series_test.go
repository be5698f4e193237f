package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/target/observe"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
)

// The bounds of docs/metrics.md: series of a namespace in the text format, and the average bytes of
// each.
const (
	seriesOfNamespace = 125
	bytesOfSeries     = 170
)

// many returns n namespaces on NVMe drives, all of them used for all operations by several hosts.
func many(n int) Source {
	src := source()
	stats, latency := src.Namespaces()[0], src.Latencies()[0]
	for us := int64(5); us < 1000; us += 7 {
		for i := range latency.Stages {
			latency.Stages[i].Add(us * 1e3)
		}
		latency.Total.Add(4 * us * 1e3)
	}
	src.Namespaces = func() (list []observed.Namespace) {
		for i := range n {
			s := stats
			s.NSID, s.Path = uint32(i+1), fmt.Sprint("/dev/ng", i)
			list = append(list, s)
		}
		return list
	}
	src.Limits = func() (list []qos.Info) {
		for i := range n {
			o := qos.Object{SubNQN: testNQN, NSID: uint32(i + 1)}
			list = append(list, qos.Info{Object: o})
		}
		return list
	}
	src.Latencies = func() (list []observe.LatencyInfo) {
		for i := range n {
			for _, host := range []string{"h1", "h2", ""} {
				for o := range observe.OperationOther + 1 {
					l := latency
					l.HostNQN, l.NSID, l.Operation = host, uint32(i+1), o
					list = append(list, l)
				}
			}
		}
		return list
	}
	return src
}

// TestSeries: the size of a scrape is bounded by the number of namespaces, for any number of hosts.
func TestSeries(t *testing.T) {
	series := func(n int) (series, size int) {
		text := exposition(t, many(n))
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "#") {
				series++
			}
		}
		return series, len(text)
	}
	const n = 300
	others, _ := series(0)
	all, size := series(n)
	t.Logf("%d namespaces: %d series, %d bytes; without them %d series", n, all, size, others)
	if each := (all - others) / n; each > seriesOfNamespace {
		t.Errorf("a namespace has %d series, more than %d", each, seriesOfNamespace)
	}
	testutil.True(t, size <= bytesOfSeries*all, "%d series have %d bytes, more than %d each", all,
		size, bytesOfSeries)
}

// BenchmarkScrape is a scrape of 1,000 namespaces with all operations in use.
func BenchmarkScrape(b *testing.B) {
	const protobuf = "application/vnd.google.protobuf;" +
		"proto=io.prometheus.client.MetricFamily;encoding=delimited"
	for _, accept := range []string{"text/plain", protobuf} {
		b.Run(accept, func(b *testing.B) {
			r := prometheus.NewRegistry()
			r.MustRegister(collector{many(1000)})
			h := promhttp.HandlerFor(r, promhttp.HandlerOpts{})
			size := 0
			for b.Loop() {
				w := httptest.NewRecorder()
				q := httptest.NewRequest(http.MethodGet, "/metrics", nil)
				q.Header.Set("Accept", accept)
				h.ServeHTTP(w, q)
				size = w.Body.Len()
			}
			b.ReportMetric(float64(size), "bytes")
		})
	}
}
