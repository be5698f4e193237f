package app_test

import (
	"bytes"
	"crypto/rand"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

func hostOptions(nqn string) host.Options {
	return host.Options{
		HostNQN: "nqn.2026-11.io.nvmf-target:host", HostID: [16]byte{1},
		SubNQN: nqn, Timeout: testutil.Patience,
	}
}

// writeAndRead does some I/O on four queues through the transport.
func writeAndRead(t *testing.T, tr host.Transport) {
	t.Helper()
	ctx := testutil.Context(t)
	c := testutil.Value(host.Connect(ctx, tr, hostOptions(testNQN)))(t)
	defer c.Close()
	testutil.Value(c.SetQueueCount(ctx, 4))(t)
	out := testutil.Value(c.Map(64 << 10))(t)
	in := testutil.Value(c.Map(64 << 10))(t)
	for qid := uint16(1); qid <= 4; qid++ {
		q := testutil.Value(c.OpenQueue(ctx, qid, 32))(t)
		_, _ = rand.Read(out)
		slba := uint64(qid) * 1000
		testutil.Must(t, hosttest.Write(ctx, q, 1, slba, 128, out, 0))
		testutil.Must(t, hosttest.Read(ctx, q, 1, slba, 128, in))
		testutil.MustTrue(t, bytes.Equal(in, out), "queue %d: other bytes were read than written",
			qid)
		testutil.Must(t, q.Close())
	}
}

// takenPort holds a port until Close.
type takenPort struct{ net.Listener }

func (p takenPort) AddrPort() netip.AddrPort { return p.Addr().(*net.TCPAddr).AddrPort() }

func listen(t *testing.T, addr string) takenPort {
	t.Helper()
	l := testutil.Value(net.Listen("tcp", addr))(t)
	t.Cleanup(func() { l.Close() })
	return takenPort{l}
}

func waitUp(t *testing.T, up <-chan fabric.Addr) {
	t.Helper()
	testutil.Receive(t, "the listener is up", up)
}

// noRDMA is the stack of a program built without cgo.
type noRDMA struct{}

func (noRDMA) Devices() ([]verbs.DeviceAttr, error) { return nil, verbs.ErrNotBuilt }
func (noRDMA) NewCM() (verbs.CM, error)             { return nil, verbs.ErrNotBuilt }

func TestRDMANotBuilt(t *testing.T) {
	s := started(t, app.Options{
		Config: parse(t, anyPort+", {transport: rdma, address: 127.0.0.1}"), Verbs: noRDMA{},
	})
	up, waiting := s.Listeners().Addrs()
	testutil.True(t, len(up) == 1 && len(waiting) == 0, "up %v, waiting %v", up, waiting)
	testutil.True(t, strings.Contains(s.Log.String(), "built without support of RDMA devices"),
		"the log does not say that devices cannot be used:\n%s", s.Log)
	got := app.DescribeRDMA(noRDMA{})
	testutil.True(t, strings.HasPrefix(got, "rdma (soft: built without"), "describeRDMA: %s", got)
}

func TestDeviceProblemNamesTheNamespace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	testutil.Must(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	text := `
listeners: [{transport: tcp, address: 127.0.0.1, port: 0}]
subsystems:
  - nqn: ` + testNQN + `
    allow_any_host: true
    namespaces:
      - {nsid: 1, backend: file, path: ` + path + `}
`
	start := func() error {
		return newServer(t, app.Options{Config: harness.Parse(t, text)}).Start()
	}
	testutil.Must(t, start())
	// The file is locked now: a second target must not have it.
	err := start()
	if err == nil ||
		!strings.Contains(err.Error(), "test.yaml:7:40: subsystems[0].namespaces[0].path: \""+path+
			"\" is in use by another namespace") {
		t.Errorf("got %v", err)
	}
}

func TestStopHasADeadline(t *testing.T) {
	s := started(t, app.Options{Config: parse(t, anyPort)})
	release := s.Block()
	testutil.True(t, !s.Alive(time.Millisecond), "a blocked reactor counts as alive")
	err := app.StopWithin(s.Server, time.Millisecond, nil, nil)
	testutil.Fails(t, err, "shutdown_timeout, 1ms", "")
	release()
}

func TestSecondSignalStopsAtOnce(t *testing.T) {
	s := started(t, app.Options{Config: parse(t, anyPort)})
	testutil.True(t, s.Alive(testTimeout), "not alive")
	release := s.Block()
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGINT
	err := app.StopWithin(s.Server, time.Hour, signals, nil)
	testutil.Fails(t, err, "second signal: interrupt", "")
	release()
}
