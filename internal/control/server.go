// Package control is the control interface: HTTP and JSON over a unix socket or TLS, by which
// operators and programs query a running target, make it reload its configuration, and create and
// delete parts of the configuration. It has the server, the client, and the types of requests and
// answers. The resources of clients are bounded: no client, however slow, silent or talkative,
// harms the target or keeps others away for long.
package control

import (
	"cmp"
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// Config says where the interface is served.
type Config struct {
	// Socket is the path of the unix socket, "" for none. A missing directory is created.
	Socket string
	// Mode is the mode of the socket, 0600 if zero.
	Mode fs.FileMode
	// Group is the name or the number of the group that owns the socket; "" leaves it unchanged.
	Group string
	// TLS is the interface on TCP.
	TLS TLS
	// Roles returns the roles of clients, which may change; nil makes everybody Admin.
	Roles func() *Roles
	// Refused is called when a peer has shown no certificate, and when a client lacks the role for
	// a request. args are keys and values for the log. Any goroutine may call it. It may be nil.
	Refused func(k *event.Kind, remote netip.AddrPort, args []any)
}

// TLS is the interface for clients that show a certificate.
type TLS struct {
	// Listen is the address; if it is not valid, the interface is not served on TCP.
	Listen netip.AddrPort
	// Certificates are read by Listen and by Server.Renew.
	Certificates httpd.Certificates
}

// Source is the state served by the interface. Several goroutines may call its functions at once.
// Functions without a context return soon. An error may be a *Problem, which the client then gets.
type Source struct {
	observed.Source
	// Trace calls fn with the commands of the flight recorder, until ctx or fn ends a following.
	Trace func(ctx context.Context, q observed.TraceQuery,
		fn func(observed.TraceQueue) error) error
	// Plan returns the changes that Reload would make, and Reload the changes that it has made.
	// Their context ends with the server, not with the client; By identifies the client.
	Plan, Reload func(context.Context) (Plan, error)
	// Objects returns the objects of the configuration, without their keys.
	Objects func() []observed.Configured
	// Configured returns an object of the configuration, named as in the lists.
	Configured func(Object) (Object, observed.Configured, error)
	Referrals  func() []Referral
	// Put creates or changes an object managed by requests; body is its description. Delete deletes
	// an object; recursive also deletes everything inside it. They return the changes once they are
	// durable; with dry, the changes that would be made. Their context is as for Plan.
	Put    func(ctx context.Context, o Object, body []byte, dry bool) (Plan, error)
	Delete func(ctx context.Context, o Object, recursive, dry bool) (Plan, error)
	// Create is Put for the namespace with the uuid in body; it may choose the NSID of a new one.
	Create func(ctx context.Context, subsystem string, body []byte) (NamespaceID, error)
	// Disconnect returns how many associations of the host it has ended; subsystem "" means all.
	Disconnect func(host, subsystem string) int
	// Drain takes listeners out of service, or into service again, and returns them.
	Drain func(which ListenerID, drain bool) ([]observed.Listener, error)
	// ANA returns the asymmetric namespace access states. SetANA sets some and returns all.
	ANA    func() []ANA
	SetANA func(ANASet) ([]ANA, error)
	// GroupVersions returns the versions of the configuration that gateways share, newest first.
	// ChangeGroup stores another one, or only plans that. Its context is as for Plan.
	GroupVersions func(context.Context) ([]GroupVersion, error)
	ChangeGroup   func(context.Context, GroupChange) (Plan, error)
	// DrainGroup gives groups away, or lets this target take them again.
	DrainGroup func(GroupDrain) error
	// Forget removes a gateway from the records of groups, and waits until that is done. Fence
	// takes the groups that it holds over, with a fence.
	Forget, Fence func(gateway string) error
	// Resize changes the size of a namespace.
	Resize func(Resize) error
	// Restart starts a process that goes on when end is called. Its context is as for Plan.
	Restart func(context.Context) (next *Succession, end func(), err error)
	// Pause makes the commands for a namespace wait, or resumes them.
	Pause func(id NamespaceID, pause bool) error
}

// The limits for clients. Anything more is cut off, refused, or waits.
const (
	maxConnections = 24
	maxFollowers   = 8 // connections that wait for events
	maxTracing     = 2 // connections that read the flight recorder
	// connections that wait for a change, even if the client is gone, and for a plan
	maxChanging, maxPlanning = 4, 4
	// the same for requests that create or delete objects, which are carried out one by one
	maxWriting = 8
	bodyBytes  = 64 << 10
	askTimeout = 5 * time.Second // for the answers of reactors
)

// Tests change these.
var (
	readTimeout  = 5 * time.Second  // for a request
	writeTimeout = 10 * time.Second // for each write
	idleTimeout  = 30 * time.Second
	// for peers that have not shown a certificate yet
	handshakeTimeout = 5 * time.Second
)

// Server serves the interface until Close.
type Server struct {
	src       Source
	config    Config
	log       *slog.Logger
	socket    string
	file      fs.FileInfo // of the socket
	http      *httpd.Server
	followers chan struct{}
	changing  chan struct{}
	planning  chan struct{}
	writing   chan struct{}
	tracing   chan struct{}
	profiling chan struct{} // with room for one
	others    chan struct{} // of clients that are not Admin
	held      sync.Map      // their connections
	files     httpd.Certificates
	tls       atomic.Pointer[tls.Config]

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
}

// Listen serves src. It logs changes by clients and problems of the server itself to log.
func Listen(c Config, src Source, log *slog.Logger) (*Server, error) {
	c.Mode = cmp.Or(c.Mode, privateMode)
	s := &Server{
		src: src, config: c, log: log, socket: c.Socket,
		followers: make(chan struct{}, maxFollowers), changing: make(chan struct{}, maxChanging),
		planning: make(chan struct{}, maxPlanning), writing: make(chan struct{}, maxWriting),
		others: make(chan struct{}, maxOthers), files: c.TLS.Certificates,
		tracing: make(chan struct{}, maxTracing), profiling: make(chan struct{}, 1),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.http = httpd.New(httpd.Config{
		Handler: s.handler(), Connections: maxConnections, Read: readTimeout,
		Write: writeTimeout, Idle: idleTimeout, Handshake: handshakeTimeout,
		ConnContext: s.enter, ConnState: s.leave,
		Log: log, Ended: "the control interface is no longer served",
	})
	if err := s.listen(c); err != nil {
		s.cancel()
		return nil, errors.Join(err, s.http.Close())
	}
	return s, nil
}

// listen opens the listeners.
func (s *Server) listen(c Config) error {
	if c.TLS.Listen.IsValid() {
		if err := s.Renew(); err != nil {
			return err
		}
		if err := s.http.Listen(&httpd.Endpoint{
			Listen: c.TLS.Listen, TLS: s.tls.Load, Refused: s.untrusted,
		}); err != nil {
			return err
		}
	}
	if c.Socket == "" {
		return nil
	}
	l, err := listen(c)
	if err != nil {
		return err
	}
	if s.file, err = os.Lstat(c.Socket); err != nil {
		return errors.Join(err, l.Close())
	}
	s.http.Serve(l)
	return nil
}

// Addr returns the address on TCP. It is not valid if the interface is not served on TCP.
func (s *Server) Addr() netip.AddrPort { return s.http.Addr() }

// Renew reads the certificates again, for new connections. After an error, which is an
// *httpd.FileError, the previous ones stay.
func (s *Server) Renew() error {
	if s.files == (httpd.Certificates{}) {
		return nil
	}
	c, err := s.files.Server()
	if err == nil {
		s.tls.Store(c)
	}
	return err
}

// CertificateEnds returns the time at which the certificate ends, the zero time if there is none.
func (s *Server) CertificateEnds() time.Time {
	if c := s.tls.Load(); c != nil {
		return c.Certificates[0].Leaf.NotAfter
	}
	return time.Time{}
}

// Close closes all connections and removes the socket. When it returns, nothing uses the Source.
func (s *Server) Close() error {
	s.cancel()
	if now, err := os.Lstat(s.socket); err == nil && s.file != nil && os.SameFile(now, s.file) {
		_ = os.Remove(s.socket)
	}
	return s.http.Close()
}

// route is one operation. openapi.json describes it.
type route struct {
	pattern, summary string
	role             Role // required role
	// body and answer have the types of the content; nil means none, and Keys any keys.
	body, answer any
	handle       func(r *http.Request) (any, error)
}

// The routes that write their answers themselves.
const (
	eventsRoute, openAPIRoute = "GET /v1/events", "GET /v1/openapi.json"
	traceRoute, profileRoute  = "GET /v1/trace", "GET /v1/debug/pprof/{profile}"
)

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	needed := map[string]Role{
		"": Read, eventsRoute: Read, openAPIRoute: Read, traceRoute: Operate, profileRoute: Admin,
	}
	parameters := map[string][]string{
		eventsRoute:  {"since", "follow"},
		profileRoute: {"seconds", "debug", "gc"}, // the others are from net/http/pprof
		traceRoute:   {"host", "subsystem", "queue", "follow", "dumps"},
	}
	for _, op := range s.objectRoutes() {
		switch method, _, _ := strings.Cut(op.pattern, " "); method {
		case http.MethodPut:
			parameters[op.pattern] = []string{dryRun}
		case http.MethodDelete:
			parameters[op.pattern] = []string{dryRun, recursively}
		}
	}
	for _, op := range s.routes() {
		needed[op.pattern] = op.role
		mux.HandleFunc(op.pattern, func(w http.ResponseWriter, r *http.Request) {
			v, err := op.handle(r)
			if op.role > Read {
				s.logWrite(r, err)
			}
			answer(w, v, err)
		})
	}
	mux.HandleFunc(eventsRoute, s.events)
	mux.HandleFunc(traceRoute, s.trace)
	mux.HandleFunc(profileRoute, s.profile)
	mux.HandleFunc(openAPIRoute, func(w http.ResponseWriter, _ *http.Request) {
		write(w, http.StatusOK, "application/json", openAPI)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.trusts(r); err != nil {
			s.untrusted(clientOf(r.Context()).remote, err)
			w.Header().Set("Connection", "close")
			answer(w, nil, NewProblem(http.StatusForbidden, err.Error(),
				"Connect again with a certificate that the target trusts now."))
			return
		}
		h, pattern := mux.Handler(r)
		if name := r.URL.EscapedPath(); name != path.Clean(name) { // mux would redirect it
			h, pattern = http.NotFoundHandler(), ""
		}
		if err := s.forbids(r, needed[pattern]); err != nil {
			answer(w, nil, err)
			return
		}
		if pattern == "" {
			refused := statusWriter{header: w.Header()}
			h.ServeHTTP(&refused, r)
			answer(w, nil, NewProblem(refused.status, "there is no "+r.Method+" of "+r.URL.Path,
				"GET /v1/openapi.json lists the operations."))
			return
		}
		if err := checkQuery(r, parameters[pattern]); err != nil {
			if needed[pattern] > Read {
				s.logWrite(r, err)
			}
			answer(w, nil, err)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// logWrite logs a change, or an attempt, with its sender.
func (s *Server) logWrite(r *http.Request, err error) {
	args := append([]any{"request", operation(r)}, By(r.Context())...)
	if err != nil {
		event.ControlRequestFailed.Report(s.log, append(args, "err", err)...)
		return
	}
	event.ControlRequest.Report(s.log, args...)
}

// untrusted logs that the certificate of a client is invalid or missing.
func (s *Server) untrusted(remote netip.AddrPort, err error) {
	s.refused(event.ControlConnectionRefused, remote, "err", err)
}

// operation returns a request as log lines name it, with its parameters (dry_run changes nothing).
func operation(r *http.Request) string {
	text := r.Method + " " + r.URL.Path
	if r.URL.RawQuery != "" {
		text += "?" + r.URL.RawQuery
	}
	return capped(text)
}

func (s *Server) disconnect(d Disconnect) (any, error) {
	if d.Host == "" {
		return nil, NewProblem(http.StatusBadRequest, "no host is given",
			"GET /v1/hosts lists them.").At("host")
	}
	return Disconnected{s.src.Disconnect(d.Host, d.Subsystem)}, nil
}
