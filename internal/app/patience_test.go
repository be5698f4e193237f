package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestPauses: a start waits for a second in total, and not after the target was asked to end.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		pause, n := pauses(ctx), 0
		for pause() {
			n++
		}
		testutil.True(t, n == int(patience/patiencePause) && !pause(), "%d pauses", n)
		pause = pauses(ctx)
		cancel()
		synctest.Wait()
		for n = 0; pause(); n++ {
			testutil.MustTrue(t, n <= 100, "it waits although the target ends")
		}
	})
}

// holder is a resource of another process: each lock, socket and address that a start needs.
type holder struct {
	name, what string // what the start reports
	hold       func(t *testing.T) (release func() error)
}

// TestPredecessor: a start with a predecessor that is still ending waits for each of its resources,
// and begins as soon as it is free. If it does not become free, the start fails and names it.
func TestPredecessor(t *testing.T) {
	dir := t.TempDir()
	disk, stateAt := filepath.Join(dir, "disk"), filepath.Join(dir, "state")
	socket := filepath.Join(dir, "control.sock")
	testutil.Must(t, os.WriteFile(disk, make([]byte, 1<<20), 0o600))
	files := issue(t, dir, time.Hour)
	port, metricsPort := testutil.FreePort(t), testutil.FreePort(t)
	pagePort, controlPort := testutil.FreePort(t), testutil.FreePort(t)
	c := parsed(t, fmt.Sprintf(`
listeners: [{transport: tcp, address: 127.0.0.1, port: %d, on_unavailable: fail}]
subsystems:
  - nqn: %s
    allow_any_host: true
    namespaces: [{nsid: 1, backend: file, path: %s}]
reactors: {count: 1, memory: 8MiB}
metrics: {listen: "127.0.0.1:%d"}
web: {listen: "127.0.0.1:%d"}
control: {socket: %s, listen: "127.0.0.1:%d", certificate: %s, key: %s, client_ca: %s}
`, port, testNQN, disk, metricsPort, pagePort, socket, controlPort, files.Certificate, files.Key,
		files.CA))
	at := func(network, address string) func(*testing.T) func() error {
		return func(t *testing.T) func() error {
			l := testutil.Value(net.Listen(network, address))(t)
			return l.Close
		}
	}
	local := func(port uint16) func(*testing.T) func() error {
		return at("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	}
	for _, h := range []holder{
		{"state", "another target uses it", func(t *testing.T) func() error {
			s := testutil.Value(state.Open(stateAt))(t)
			return s.Close
		}},
		{"file", "is in use by another namespace", func(t *testing.T) func() error {
			f, err := os.Open(disk)
			if err == nil {
				err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
			}
			testutil.Must(t, err)
			return f.Close
		}},
		{"listener", "address already in use", local(port)},
		{"metrics", "metrics.listen: cannot listen", local(metricsPort)},
		{"page", "web.listen: cannot listen", local(pagePort)},
		{"control", "control.listen: cannot listen", local(controlPort)},
		{"socket", "listens at " + socket, at("unix", socket)},
	} {
		t.Run(h.name, func(t *testing.T) {
			begin := func() (s *Server, release func() error) {
				s = newServer(t, Options{Config: c, StateDir: stateAt})
				return s, h.hold(t)
			}
			s, release := begin()
			err := s.Start()
			testutil.Fails(t, err, h.what, "it is not free")
			stopped(t, s)
			testutil.Must(t, release())

			s, release = begin()
			tries := 0
			s.pause = func() bool {
				if tries++; tries == 3 {
					testutil.Check(t, release())
				}
				return tries <= 3
			}
			err = s.Start()
			testutil.True(t, err == nil && tries == 3, "after %d attempts: %v", tries, err)
			stopped(t, s)
		})
	}
}

func stopped(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	testutil.Check(t, s.Stop(ctx))
}

// TestInUse: the errors for which a start waits, and others.
func TestInUse(t *testing.T) {
	busy, warning := config.Problem{InUse: true}, config.Problem{Warning: true}
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{errors.New("a file has the wrong size"), false},
		{fmt.Errorf("a: %w", unix.EADDRINUSE), true},
		{fmt.Errorf("a: %w", control.ErrInUse), true},
		{config.Problems{busy, warning}, true},
		{config.Problems{busy, {What: "wrong"}}, false},
	} {
		testutil.Equal(t, inUse(tc.err), tc.want, "%v", tc.err)
	}
}

// TestOpenedOnce: metrics and page are opened once, however many of their keys are set.
func TestOpenedOnce(t *testing.T) {
	log := new(testutil.Log)
	s := started(t, Options{Log: log.Logger(), Config: parse(t, anyPort,
		`metrics: {listen: "127.0.0.1:0", token: 0123456789abcdef0123456789abcdef}`,
		`web: {listen: "127.0.0.1:0", token: 0123456789abcdef0123456789abcdef}`)})
	for _, what := range []string{"metrics are served", "the page is served"} {
		n := strings.Count(log.String(), what)
		testutil.True(t, n == 1, "%s: %d times\n%s", what, n, log)
	}
	testutil.True(t, s.metrics.server != nil && s.web.server != nil, "not served")
}
