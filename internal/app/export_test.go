package app

import (
	"context"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/engine"
	"github.com/nvmf-target/nvmf-target/internal/group"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/listeners"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/web"
)

// The tests of package app_test have servers of tests/harness. They see and replace these parts.

var (
	DescribeRDMA = describeRDMA
	SoftProvider = softProvider
	StopWithin   = stop
)

func (s *Server) Engine() *engine.Engine           { return s.engine }
func (s *Server) Listeners() *listeners.Listeners  { return s.listeners }
func (s *Server) State() *state.Store              { return s.state }
func (s *Server) Control() *control.Server         { return s.control.Load() }
func (s *Server) Roles() *control.Roles            { return s.roles.Load() }
func (s *Server) Metrics() *httpd.Server           { return s.metrics.server }
func (s *Server) Page() *web.Server                { return s.web.server }
func (s *Server) Current() *config.Config          { return s.current() }
func (s *Server) Refusals() []observed.Refusal     { return s.recorder.Refusals() }
func (s *Server) Subsystems() []observed.Subsystem { return s.subsystemStates() }
func (s *Server) Offered() []group.Port            { return s.offered() }
func (s *Server) Alive(timeout time.Duration) bool { return s.alive(timeout) }
func (s *Server) RestoreState()                    { s.restoreState() }
func (s *Server) SetPause(pause func() bool)       { s.pause = pause }
func (s *Server) CountPorts(dir string)            { s.ports = doctor.Ports(dir) }

// Hasty makes metrics wait for no reactor.
func (s *Server) Hasty() { s.usageTimeout, s.latencyTimeout = time.Millisecond, time.Millisecond }

func (s *Server) Connections(ctx context.Context) ([]observed.Connection, error) {
	return s.connections(ctx)
}

func (s *Server) Create(ctx context.Context, nqn string, body []byte) (control.NamespaceID, error) {
	return s.create(ctx, nqn, body)
}

// Look reads the states that clients and the service manager get.
func (s *Server) Look() {
	_ = s.announcement().text(reachable)
	s.listeners.States()
	s.namespaceStates()
	s.subsystemStates()
	s.status()
}

// Settable reports whether a key can be changed.
func Settable(key string) bool { return new(Server).settings().Of(key) != nil }

// Block keeps a reactor busy until release is called.
func (s *Server) Block() (release func()) {
	blocked := make(chan struct{})
	s.workers.Loop(0).Post(func() { <-blocked })
	return func() { close(blocked) }
}

// Handle handles signals as Serve does.
func (s *Server) Handle(signals, hangups <-chan os.Signal) error {
	p := &program{server: s, log: s.log, out: io.Discard, hungUp: new(atomic.Bool)}
	return p.run(signals, hangups, nil, nil)
}

// Prepare makes a server that talks to its successor let it listen.
func (s *Server) Prepare(ctx context.Context, talk net.Conn, kill func()) error {
	defer s.engine.Hold()()
	return (&succession{server: s}).prepare(ctx, &successor{talk: talk, kill: kill})
}

// StopReplaced stops a server that a successor replaces.
func (s *Server) StopReplaced(kill func(), signals <-chan os.Signal) error {
	r := &succession{server: s}
	r.next.Store(&successor{kill: kill})
	return r.stop(errSucceeded, signals, s.log)
}

// Succeed waits as a successor, and returns its RDMA stack and Options.Applied.
func Succeed(talk net.Conn, v verbs.Provider, signals <-chan os.Signal) (verbs.Provider, func(),
	error,
) {
	e, err := (&predecessor{talk: talk}).wait(v, signals)
	return e, e.settle, err
}

// Hear waits for a successor.
func Hear(talk net.Conn, within time.Duration) error {
	return (&successor{talk: talk}).hear(within)
}

// Share makes a server a gateway that shares its configuration.
func (s *Server) Share(c config.Group,
	share func(apply func(*group.Version) error) *group.Shared,
) {
	s.atStart.Group = c
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	s.groups.shared = share(func(v *group.Version) error {
		_, err := s.applyVersion(v, false)
		return err
	})
}
