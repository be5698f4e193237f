package app

import (
	"bytes"
	"crypto/rand"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
	"github.com/nvmf-target/nvmf-target/nvme/host"
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

// rdmaNetwork makes a network with a host at 10.0.0.2 and the target, which has a device if it has
// an address. The network ends after the server has stopped, which needs it.
func rdmaNetwork(t *testing.T, target string) *verbstest.Fabric {
	network := verbstest.New(verbstest.Options{Async: true})
	t.Cleanup(network.Close)
	network.AddHost("host", verbstest.RoCE("rxe0", netip.MustParseAddr("10.0.0.2")))
	if network.AddHost("target"); target != "" {
		network.AddHost("target", verbstest.RoCE("rxe0", netip.MustParseAddr(target)))
	}
	return network
}

func TestRDMAWaitsForItsDevice(t *testing.T) {
	network, addr := rdmaNetwork(t, ""), netip.MustParseAddr("10.0.0.1")
	up := make(chan fabric.Addr, 1)
	s := started(t, Options{
		Config: parse(t, "{transport: rdma, address: 10.0.0.1}"), Verbs: network.Provider("target"),
		Retry: time.Millisecond, ListenerUp: func(a fabric.Addr) { up <- a },
	})
	if a := s.announcement(); len(a.up) != 0 || len(a.waiting) != 1 {
		t.Fatalf("up %v, waiting %v: want none and one", a.up, a.waiting)
	}
	network.AddHost("target", verbstest.RoCE("rxe0", addr))
	waitUp(t, up)
	writeAndRead(t,
		host.RDMA{Provider: network.Provider("host"), Addr: netip.AddrPortFrom(addr, 4420)})
}

// noRDMA is the stack of a program built without cgo.
type noRDMA struct{}

func (noRDMA) Devices() ([]verbs.DeviceAttr, error) { return nil, verbs.ErrNotBuilt }
func (noRDMA) NewCM() (verbs.CM, error)             { return nil, verbs.ErrNotBuilt }

func TestRDMANotBuilt(t *testing.T) {
	var log bytes.Buffer
	c := parse(t,
		"{transport: tcp, address: 127.0.0.1, port: 0}, {transport: rdma, address: 127.0.0.1}")
	s := started(t, Options{
		Config: c, Log: slog.New(slog.NewTextHandler(&log, nil)), Verbs: noRDMA{},
	})
	if a := s.announcement(); len(a.up) != 1 || len(a.waiting) != 0 {
		t.Errorf("up %v, waiting %v: want one and none", a.up, a.waiting)
	}
	testutil.True(t, strings.Contains(log.String(), "built without support of RDMA devices"),
		"the log does not say that devices cannot be used:\n%s", log.String())
	got := describeRDMA(noRDMA{})
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
		c := parsed(t, text)
		return newServer(t, Options{Config: c}).Start()
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

// blockReactor keeps a reactor busy until the test ends.
func blockReactor(s *Server) (release func()) {
	blocked := make(chan struct{})
	s.workers.Loop(0).Post(func() { <-blocked })
	return func() { close(blocked) }
}

func TestStopHasADeadline(t *testing.T) {
	s := started(t, Options{Config: parse(t, "{transport: tcp, address: 127.0.0.1, port: 0}")})
	release := blockReactor(s)
	testutil.True(t, !s.alive(time.Millisecond), "a blocked reactor counts as alive")
	err := stop(s, time.Millisecond, nil, quiet())
	testutil.Fails(t, err, "shutdown_timeout, 1ms", "")
	release()
}

func TestSecondSignalStopsAtOnce(t *testing.T) {
	s := started(t, Options{Config: parse(t, "{transport: tcp, address: 127.0.0.1, port: 0}")})
	testutil.True(t, s.alive(testTimeout), "not alive")
	release := blockReactor(s)
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGINT
	err := stop(s, time.Hour, signals, quiet())
	testutil.Fails(t, err, "second signal: interrupt", "")
	release()
}

func TestVersion(t *testing.T) {
	build := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: settings}
	}
	revision := debug.BuildSetting{
		Key:   "vcs.revision",
		Value: "0123456789abcdef0123456789abcdef01234567",
	}
	modified := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	for _, test := range []struct {
		linked string
		info   *debug.BuildInfo
		want   string
	}{
		{"v1.2.3", build("v1.2.2"), "v1.2.3"},
		{"", build("v1.2.2", revision), "v1.2.2"},
		{"", build("(devel)", revision), "0123456789ab"},
		{"", build("", revision, modified), "0123456789ab-dirty"},
		{"", build("(devel)", modified), "devel"},
		{"", nil, "devel"},
	} {
		testutil.Equal(t, versionOf(test.linked, test.info), test.want,
			"linked %q, built from %+v", test.linked, test.info)
	}
}
