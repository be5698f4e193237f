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
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nvmf-target/nvmf-target/internal/netlimit"
)

// The limits for scrapers: more is cut off or refused.
const (
	headerBytes    = 8 << 10
	maxConnections = 32
	maxScrapes     = 4
)

// Tests change these.
var (
	headerTimeout = 5 * time.Second
	writeTimeout  = 30 * time.Second // Prometheus gives up after 10 s by default
	idleTimeout   = 2 * time.Minute  // Prometheus asks every 15 s to 60 s
)

// Server serves /metrics until Close.
type Server struct {
	addr netip.AddrPort
	http http.Server
	done chan struct{} // closed when the listener is

	scrapes sync.RWMutex // held for reading by each scrape
	closed  bool         // under scrapes
}

// Config is where metrics are served, and to whom.
type Config struct {
	// Listen is the address; port 0 means any free port.
	Listen netip.AddrPort
	// Wrap returns a listener with TLS; nil: there is none.
	Wrap func(net.Listener) net.Listener
	// Admits reports whether scrapers with a bearer token are served; nil: all are.
	Admits func(token string) bool
	// Refused is called when a scraper is not served.
	Refused func(remote netip.AddrPort, err error)
}

// Listen serves src. Problems of scrapes go to log.
func Listen(c Config, src Source, log *slog.Logger) (*Server, error) {
	l, err := netlimit.Listen(c.Listen)
	if err != nil {
		return nil, err
	}
	s := &Server{addr: l.Addr().(*net.TCPAddr).AddrPort(), done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.guard(handler(src, log)))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `<title>nvmf-target</title><a href="/metrics">Metrics</a>`)
	})
	if c.Wrap != nil {
		l = c.Wrap(l)
	}
	s.http = http.Server{
		Handler: c.authorize(mux), ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: headerBytes, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(netlimit.New(l, maxConnections)); !errors.Is(err,
			http.ErrServerClosed) {
			log.Error("metrics are no longer served", "err", err)
		}
	}()
	return s, nil
}

var errToken = errors.New("no bearer token, or not the right one")

// authorize serves those that send the token.
func (c *Config) authorize(next http.Handler) http.Handler {
	if c.Admits == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := r.Header["Authorization"]
		if len(given) == 1 {
			scheme, token, _ := strings.Cut(given[0], " ")
			if strings.EqualFold(scheme, "Bearer") && c.Admits(token) {
				next.ServeHTTP(w, r)
				return
			}
		}
		remote, _ := netip.ParseAddrPort(r.RemoteAddr)
		c.Refused(remote, errToken)
		w.Header().Set("WWW-Authenticate", "Bearer")
		w.Header().Set("Connection", "close") // it makes place for others
		http.Error(w, errToken.Error(), http.StatusUnauthorized)
	})
}

// handler answers with the metrics of src and of the process, in the text format of Prometheus or
// OpenMetrics. A scrape that fails is answered with status 500, so that up is 0 in Prometheus: part
// of the metrics could be taken for all.
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

// scrapeLog logs what is wrong with scrapes, but not that scrapers leave, which they can at will.
type scrapeLog struct{ *slog.Logger }

// Println implements promhttp.Logger.
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

// guard makes Close wait for scrapes. A panic ends in net/http, which closes the connection.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.scrapes.RLock()
		defer s.scrapes.RUnlock()
		if s.closed {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

// Addr is the address listened on, with the real port.
func (s *Server) Addr() netip.AddrPort { return s.addr }

// Close closes all connections, even in the middle of a scrape. Nothing uses the Source when it
// returns.
func (s *Server) Close() error {
	err := s.http.Close()
	<-s.done
	s.scrapes.Lock() // scrapes in progress fail at their next write
	defer s.scrapes.Unlock()
	s.closed = true
	return err
}
