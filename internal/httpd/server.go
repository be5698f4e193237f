// Package httpd serves HTTP to slow, silent or hostile clients. It bounds connections, headers,
// time, and peers in a TLS handshake, for the control interface, metrics and the page.
package httpd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

const (
	// headerBytes is the size limit of the headers of a request.
	headerBytes      = 8 << 10
	handshakeTimeout = 5 * time.Second
)

// Endpoint is an address on TCP, with the certificates and the token of its server.
type Endpoint struct {
	// Listen is the address; port 0 means any free port.
	Listen netip.AddrPort
	// TLS returns the configuration for the next connection; nil means no TLS.
	TLS func() *tls.Config
	// Admits reports whether clients with a token are served; nil serves all.
	Admits func(token string) bool
	// Refused is called when a client is not served. Any goroutine may call it.
	Refused func(remote netip.AddrPort, err error)
}

// Config configures the limits of a server.
type Config struct {
	// Handler answers requests. A panic in it ends the connection.
	Handler http.Handler
	// Connections is the maximum number at each listener. More wait in the kernel.
	Connections int
	// Read bounds the time in which a client sends a request, Write the time in which it takes the
	// answer, and Idle the time between requests.
	Read, Write, Idle time.Duration
	// Handshake bounds the time of a TLS handshake; 0 means 5 s.
	Handshake time.Duration
	// ConnContext and ConnState are as in http.Server.
	ConnContext func(context.Context, net.Conn) context.Context
	ConnState   func(net.Conn, http.ConnState)
	// Log gets the problems of the server itself. Ended is the message when a listener fails.
	Log   *slog.Logger
	Ended string
}

// Server serves HTTP until Close.
type Server struct {
	config  Config
	http    http.Server
	addr    netip.AddrPort
	serving sync.WaitGroup // the listeners

	requests sync.RWMutex // held for reading by each request
	closed   bool         // under requests
}

// New returns a server without listeners.
func New(c Config) *Server {
	s := &Server{config: c}
	s.http = http.Server{
		Handler: http.HandlerFunc(s.handle), ReadTimeout: c.Read, WriteTimeout: c.Write,
		IdleTimeout: c.Idle, MaxHeaderBytes: headerBytes, ConnContext: c.ConnContext,
		ConnState: c.ConnState, ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelWarn),
	}
	return s
}

// Listen serves at an endpoint. The handler checks the token.
func (s *Server) Listen(e *Endpoint) error {
	l, err := Listen(e.Listen)
	if err != nil {
		return err
	}
	s.addr = l.Addr().(*net.TCPAddr).AddrPort()
	if e.TLS != nil {
		l = newTLSListener(l, e, cmp.Or(s.config.Handshake, handshakeTimeout))
	}
	s.Serve(l)
	return nil
}

// Serve serves the connections of a listener. Close closes it.
func (s *Server) Serve(l net.Listener) {
	l = limited(l, s.config.Connections)
	s.serving.Go(func() {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.config.Log.Error(s.config.Ended, "err", err)
		}
	})
}

// Addr returns the address of Listen with the actual port. Before Listen it is not valid.
func (s *Server) Addr() netip.AddrPort { return s.addr }

// handle makes Close wait for requests.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	s.requests.RLock()
	defer s.requests.RUnlock()
	if s.closed {
		panic(http.ErrAbortHandler)
	}
	s.config.Handler.ServeHTTP(w, r)
}

// Close closes all connections, even during answers. No handler runs when it returns.
func (s *Server) Close() error {
	err := s.http.Close()
	s.serving.Wait()
	s.requests.Lock() // requests in progress fail at their next write
	defer s.requests.Unlock()
	s.closed = true
	return err
}

// Bearer returns the token that a program has sent (RFC 6750), "" if there is none.
func Bearer(r *http.Request) string {
	given := r.Header["Authorization"]
	if len(given) != 1 {
		return ""
	}
	scheme, token, _ := strings.Cut(given[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return token
}

// Refuse rejects a request with a reason and ends the connection, to make room for others.
// challenge is the challenge of StatusUnauthorized (RFC 9110, 11.6.1).
func Refuse(w http.ResponseWriter, status int, challenge string, why error) {
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", challenge)
	}
	w.Header().Set("Connection", "close")
	http.Error(w, why.Error(), status)
}
