// Package web serves a page that shows the activity and the problems of the target in a browser.
// The page can change nothing. Its files are built into the program. Server-sent events carry the
// changing data. Each event has the complete state. The resources of browsers are bounded. While no
// page is open only the history of namespaces is kept.
package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/web/static"
)

// The limits for browsers. Anything more is cut off or refused.
const (
	readTimeout    = 5 * time.Second
	writeTimeout   = 10 * time.Second // for each write
	idleTimeout    = time.Minute
	maxConnections = 32
	maxStreams     = 12 // open pages
	// streamTime is the time for which a page is served at once. The page reconnects by itself, so
	// the place of a page that has silently gone becomes free by then.
	streamTime = 10 * time.Minute
)

var index = template.Must(template.New("index.html").Funcs(template.FuncMap{"columns": columns}).
	ParseFS(static.Files, "index.html"))

// table is an empty table of the page.
type table struct {
	ID, Caption string
	Columns     []string
}

// columns parses the ID, the caption and the headings of a table.
func columns(text string) table {
	list := strings.Split(text, "|")
	return table{list[0], list[1], list[2:]}
}

// Server serves the page until Close.
type Server struct {
	*httpd.Server
	at      httpd.Endpoint
	page    []byte
	sampler *sampler
	others  atomic.Pointer[others]
	streams chan struct{}
	patient atomic.Int64 // for each write of a new stream, a duration
}

// Listen serves src, and also shows targets. Problems of the server itself go to log.
func Listen(at httpd.Endpoint, src Source, targets []Target, log *slog.Logger) (*Server, error) {
	s, err := newServer(at, src, targets, log)
	if err != nil {
		return nil, err
	}
	if err := s.Listen(&s.at); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

func newServer(at httpd.Endpoint, src Source, targets []Target, log *slog.Logger,
) (*Server, error) {
	host, _ := os.Hostname()
	var page bytes.Buffer
	if err := index.Execute(&page, map[string]any{"Host": host}); err != nil {
		return nil, err
	}
	s := &Server{
		at: at, page: page.Bytes(), sampler: newSampler(src, log),
		streams: make(chan struct{}, maxStreams),
	}
	s.patient.Store(int64(writeTimeout))
	s.others.Store(newOthers(targets, s.sampler.safely))
	s.Server = httpd.New(httpd.Config{
		Handler: s.handler(), Connections: maxConnections, Read: readTimeout,
		Write: writeTimeout, Idle: idleTimeout, Log: log, Ended: "the page is no longer served",
	})
	return s, nil
}

// SetTargets replaces the other targets on the page.
func (s *Server) SetTargets(targets []Target) {
	s.others.Swap(newOthers(targets, s.sampler.safely)).close()
}

// Close closes all connections. When it returns, nothing uses the Source.
func (s *Server) Close() error {
	err := s.Server.Close()
	s.sampler.cancel()
	s.sampler.wg.Wait()
	s.others.Load().close()
	return err
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(s.page)
	})
	mux.HandleFunc("GET /static/{file}", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("file")
		if path.Ext(name) == ".html" {
			http.NotFound(w, r)
			return
		}
		http.ServeFileFS(w, r, static.Files, name)
	})
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("GET /history", s.history)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protect(w.Header())
		if status, err := s.refuses(r); err != nil {
			httpd.Refuse(w, status, `Basic realm="nvmf-target", charset="UTF-8"`, err)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// protect forbids inline scripts, content from elsewhere, and to be part of another page.
func protect(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; "+
		"img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "+
		"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

var errPassword = errors.New("the password is missing or wrong")

// refuses returns an error if a request is not served. With TLS, a name must have a certificate.
// Without, only addresses are served: a page elsewhere could make its own name mean this address
// and read the answers. It cannot read other answers, but could take streams.
func (s *Server) refuses(r *http.Request) (status int, err error) {
	if s.at.TLS == nil && !isAddress(r.Host) {
		return http.StatusMisdirectedRequest, fmt.Errorf("%q is not an address: open http://%v/ "+
			"or localhost, or set web.certificate", r.Host, s.Addr())
	}
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	if u, err := url.Parse(origin); r.URL.Path != "/" && (site == "cross-site" ||
		site == "same-site" || origin != "" && (err != nil || u.Host != r.Host)) {
		return http.StatusForbidden, errors.New("the request comes from another page")
	}
	if s.at.Admits != nil && !s.at.Admits(password(r)) {
		remote, _ := netip.ParseAddrPort(r.RemoteAddr)
		if r.Header.Get("Authorization") != "" { // browsers first ask without it
			s.at.Refused(remote, errPassword)
		}
		return http.StatusUnauthorized, errPassword
	}
	return 0, nil
}

func isAddress(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || strings.EqualFold(host, "localhost")
}

// password returns the password of a browser (Basic, RFC 7617) or program (Bearer, RFC 6750).
func password(r *http.Request) string {
	if _, p, ok := r.BasicAuth(); ok {
		return p
	}
	return httpd.Bearer(r)
}

// history sends the last hour of a namespace, of this target or of another one.
func (s *Server) history(w http.ResponseWriter, r *http.Request) {
	of, name := r.FormValue("of"), r.FormValue("target")
	if name == "" {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.sampler.history.of(of))
		return
	}
	o := s.others.Load().find(name)
	if o == nil {
		http.Error(w, "no target has this name", http.StatusNotFound)
		return
	}
	text, err := o.history(r.Context(), of)
	if err != nil {
		http.Error(w, o.hide(err.Error()), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

// events sends the current state and each new one. A browser that reads slowly gets the newest
// state next, and no older one. With the parameter target it sends the states of that target, ""
// for this one, each with an overview of all targets. Other targets ask without it; otherwise
// targets that show each other would keep their connections forever.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		http.Error(w, "too many pages are open", http.StatusServiceUnavailable)
		return
	}
	s.sampler.join()
	defer s.sampler.leave()
	own := &s.sampler.feed
	shown, others, gone := own, (*others)(nil), (<-chan struct{})(nil)
	if target, ok := r.URL.Query()["target"]; ok {
		others = s.others.Load()
		gone = others.ctx.Done()
		for _, o := range others.list {
			o.join()
			defer o.leave()
		}
		if o := others.find(target[0]); o != nil {
			shown = &o.feed
		} else if target[0] != "" {
			shown = nil // the overview reports it
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), streamTime)
	defer cancel()
	c, patient := http.NewResponseController(w), time.Duration(s.patient.Load())
	_ = c.SetReadDeadline(time.Time{}) // reads only detect that the browser has gone
	w.Header().Set("Content-Type", "text/event-stream")
	text := net.Buffers{[]byte("retry: 2000\n\n")}
	var sent <-chan struct{}
	for {
		_, tick := own.get()
		changed := tick
		if shown != nil {
			var state []byte
			if state, changed = shown.get(); state != nil && changed != sent {
				text = append(text, []byte("data: "), state, []byte("\n\n"))
			}
			sent = changed
		}
		if others != nil {
			text = append(text, fmt.Appendf(nil, "event: targets\ndata: %s\n\n",
				others.overview(own)))
		}
		_ = c.SetWriteDeadline(time.Now().Add(patient))
		if _, err := text.WriteTo(w); err != nil || c.Flush() != nil {
			return
		}
		text = nil
		select {
		case <-tick:
		case <-changed:
		case <-gone:
			return
		case <-ctx.Done():
			return
		}
	}
}
