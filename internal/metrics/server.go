package metrics

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nvmf-target/nvmf-target/internal/httpd"
)

// The limits for scrapers. Anything more is cut off or refused.
const (
	maxConnections = 32
	maxScrapes     = 4
)

// Tests change these.
var (
	readTimeout  = 5 * time.Second
	writeTimeout = 30 * time.Second // Prometheus gives up after 10 s by default
	idleTimeout  = 2 * time.Minute  // Prometheus asks every 15 s to 60 s
)

// Listen serves src at /metrics until the server is closed. Problems of scrapes go to log.
func Listen(at httpd.Endpoint, src Source, log *slog.Logger) (*httpd.Server, error) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", handler(src, log))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `<title>nvmf-target</title><a href="/metrics">Metrics</a>`)
	})
	s := httpd.New(httpd.Config{
		Handler: authorize(&at, mux), Connections: maxConnections, Read: readTimeout,
		Write: writeTimeout, Idle: idleTimeout, Log: log, Ended: "metrics are no longer served",
	})
	if err := s.Listen(&at); err != nil {
		return nil, err
	}
	return s, nil
}

var errToken = errors.New("the bearer token is missing or wrong")

// authorize serves clients that send the token.
func authorize(at *httpd.Endpoint, next http.Handler) http.Handler {
	if at.Admits == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if at.Admits(httpd.Bearer(r)) {
			next.ServeHTTP(w, r)
			return
		}
		remote, _ := netip.ParseAddrPort(r.RemoteAddr)
		at.Refused(remote, errToken)
		httpd.Refuse(w, http.StatusUnauthorized, "Bearer", errToken)
	})
}

// handler answers with the metrics of src and of the process, in the text format of Prometheus or
// OpenMetrics. A failed scrape is answered with status 500, so that up is 0 in Prometheus:
// otherwise part of the metrics could be taken for all.
func handler(src Source, log *slog.Logger) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collector{src}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{
		ErrorLog:            scrapeLog{log},
		ErrorHandling:       promhttp.HTTPErrorOnError,
		MaxRequestsInFlight: maxScrapes, EnableOpenMetrics: true,
	})
}

// scrapeLog logs errors of scrapes, but not scrapers that leave, which they can do at will.
type scrapeLog struct{ *slog.Logger }

func (l scrapeLog) Println(v ...any) {
	for _, a := range v {
		if err, ok := a.(error); ok {
			if _, ok := errors.AsType[*net.OpError](err); ok {
				return
			}
		}
	}
	l.Warn(strings.TrimSpace(fmt.Sprintln(v...)))
}
