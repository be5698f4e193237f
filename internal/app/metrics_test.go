package app

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

const anyPort = "{transport: tcp, address: 127.0.0.1, port: 0, on_unavailable: fail}"

// scraped returns the text of the metrics.
func scraped(t *testing.T, s *Server) string {
	t.Helper()
	return testutil.Get(t, fmt.Sprintf("http://%v/metrics", s.metrics.server.Addr()))
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
	testutil.True(t, strings.Contains(scraped(t, s), `nvmf_target_namespace_ready{nsid="1",subsystem="`+
		testNQN+`"} 1`), "the namespace is not shown as ready")
	release()
	testutil.Check(t, <-stopped)
	testutil.Is(t, testutil.Err(net.Dial("tcp", at)), syscall.ECONNREFUSED,
		"metrics are still served")
}
