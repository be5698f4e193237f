package app_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// holder is a resource of another process: each lock, socket and address that a start needs.
type holder struct {
	name, what string // in the error of the start
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
	c := harness.Parse(t, fmt.Sprintf(`
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
			begin := func() (s *harness.Harness, release func() error) {
				s = newServer(t, app.Options{Config: c, StateDir: stateAt})
				return s, h.hold(t)
			}
			s, release := begin()
			err := s.Start()
			testutil.Fails(t, err, h.what, "it is not free")
			s.Stop()
			testutil.Must(t, release())

			s, release = begin()
			tries := 0
			s.SetPause(func() bool {
				if tries++; tries == 3 {
					testutil.Check(t, release())
				}
				return tries <= 3
			})
			err = s.Start()
			testutil.True(t, err == nil && tries == 3, "after %d attempts: %v", tries, err)
			s.Stop()
		})
	}
}
