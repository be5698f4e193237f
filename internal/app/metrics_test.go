package app

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/ram"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

const anyPort = "{transport: tcp, address: 127.0.0.1, port: 0, on_unavailable: fail}"

// scrape returns the result of a scrape, values by name and labels.
func scrape(t *testing.T, s *Server) map[string]float64 {
	t.Helper()
	var err error
	out := map[string]float64{}
	for _, m := range regexp.MustCompile(`(?m)^(nvmf_target_\S+) (\S+)$`).FindAllStringSubmatch(
		scrapeText(t, s), -1) {
		out[m[1]], err = strconv.ParseFloat(m[2], 64)
		testutil.MustTrue(t, err == nil, "%v", err)
	}
	return out
}

func scrapeText(t *testing.T, s *Server) string {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testTimeout}
	r, err := c.Get(fmt.Sprintf("http://%v/metrics", s.metrics.server.Addr()))
	testutil.Must(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	testutil.MustTrue(t, err == nil && r.StatusCode == http.StatusOK, "%v %v %v", r.Status, err,
		string(b))
	return string(b)
}

func expect(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for name, v := range want {
		n, ok := got[name]
		testutil.True(t, ok && n == v, "%s is %v (%v), want %v", name, n, ok, v)
	}
}

// ofNS returns the name of a metric of a namespace.
func ofNS(name, nsid string, more ...string) string {
	labels := append([]string{`nsid="` + nsid + `"`, `subsystem="` + testNQN + `"`}, more...)
	slices.Sort(labels)
	return "nvmf_target_" + name + "{" + strings.Join(labels, ",") + "}"
}

// TestMetricsWhileDraining: metrics are served while connections drain, and a scraper that does not
// read does not delay the end.
func TestMetricsWhileDraining(t *testing.T) {
	s := newServer(t, Options{Config: parse(t, anyPort, "metrics: {listen: '127.0.0.1:0'}")})
	s.usageTimeout, s.latencyTimeout = time.Millisecond, time.Millisecond // of a reactor
	testutil.Must(t, s.Start())
	at := s.metrics.server.Addr().String()
	slow := testutil.Value(net.Dial("tcp", at))(t)
	defer slow.Close()
	testutil.Value(io.WriteString(slow, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"))(t)
	addr := s.Addrs()[0].AddrPort.String()
	release := sync.OnceFunc(blockReactor(s))
	defer release()
	ctx := testutil.Context(t)
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop(ctx) }()
	for { // the listeners are closed first
		c, err := net.Dial("tcp", addr)
		if err != nil {
			break
		}
		c.Close()
	}
	expect(t, scrape(t, s), map[string]float64{ofNS("namespace_ready", "1"): 1})
	release()
	testutil.Check(t, <-stopped)
	testutil.Is(t, testutil.Err(net.Dial("tcp", at)), syscall.ECONNREFUSED,
		"metrics are still served")
}

// TestMetricsOfRDMA: RDMA connections are counted, and an operation that completes late, after its
// io_timeout.
func TestMetricsOfRDMA(t *testing.T) {
	t.Parallel()
	network := rdmaNetwork(t, "10.0.0.1")
	c := parse(t, "{transport: rdma, address: 10.0.0.1, on_unavailable: fail}",
		"metrics: {listen: '127.0.0.1:0'}")
	c.Subsystems[0].Namespaces[0].Timeout = 100 * time.Millisecond
	dev := testutil.Value(ram.Open(ram.Config{Size: 16 << 20, BlockSize: 512}))(t)
	hung := backendtest.NewFaulty(dev)
	hung.Hold(func(io *backend.IO) bool { return io.Op == backend.OpFlush })
	s := started(t, Options{
		Config: c, Verbs: network.Provider("target"),
		OpenDevice: func(*config.Namespace) (backend.Device, error) { return hung, nil },
	})
	ctx := testutil.Context(t)
	_, q := oneQueue(ctx, t, host.RDMA{
		Provider: network.Provider("host"), Addr: netip.MustParseAddrPort("10.0.0.1:4420"),
	})
	testutil.MustTrue(t, hosttest.Flush(ctx, q, 1) != nil, "a flush above io_timeout succeeded")
	expect(t, scrape(t, s), map[string]float64{
		`nvmf_target_connections{transport="rdma"}`:    2,
		`nvmf_target_rdma_queue_pairs{device="rxe0"}`:  2,
		ofNS("namespace_commands_given_up_total", "1"): 1,
		ofNS("namespace_orphans", "1"):                 1,
		ofNS("namespace_ready", "1"):                   0,
		ofNS("namespace_returns_total", "1"):           0,
	})
	hung.Release()
	testutil.Until(t, "the operation comes back", func() bool {
		return scrape(t, s)[ofNS("namespace_returns_total", "1")] > 0
	})
	expect(t, scrape(t, s),
		map[string]float64{ofNS("namespace_orphans", "1"): 0, ofNS("namespace_ready", "1"): 1})
}

// oneQueue connects a host with one I/O queue; both are closed at the end of the test.
func oneQueue(ctx context.Context, t *testing.T, transport host.Transport) (*host.Controller,
	*host.Queue,
) {
	t.Helper()
	h := testutil.Value(host.Connect(ctx, transport, hostOptions(testNQN)))(t)
	t.Cleanup(h.Close)
	q := testutil.Value(h.OpenQueue(ctx, 1, 32))(t)
	t.Cleanup(func() { _ = q.Close() })
	return h, q
}
