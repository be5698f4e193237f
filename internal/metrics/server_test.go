package metrics

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

var (
	quiet    = slog.New(slog.DiscardHandler)
	loopback = netip.MustParseAddrPort("127.0.0.1:0")
)

// serve serves src until the end of the test.
func serve(t *testing.T, src Source, log *slog.Logger) *httpd.Server {
	t.Helper()
	s := testutil.Value(Listen(httpd.Endpoint{Listen: loopback}, src, log))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// get requests a path with an Accept header.
func get(t *testing.T, s *httpd.Server, method, path, accept string) (status int, contentType,
	body string,
) {
	t.Helper()
	req := testutil.Value(
		http.NewRequest(method, fmt.Sprintf("http://%v%s", s.Addr(), path), nil))(t)
	req.Header.Set("Accept", accept)
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Do(req.WithContext(testutil.Context(t)))
	testutil.Must(t, err)
	defer r.Body.Close()
	b := testutil.Value(io.ReadAll(r.Body))(t)
	return r.StatusCode, r.Header.Get("Content-Type"), string(b)
}

func TestServe(t *testing.T) {
	s := serve(t, source(), quiet)
	for _, accept := range []string{"", "application/openmetrics-text"} {
		status, contentType, body := get(t, s, http.MethodGet, "/metrics", accept)
		open := strings.HasPrefix(contentType, "application/openmetrics-text")
		testutil.True(t, status == http.StatusOK && open == (accept != "") &&
			open == strings.HasSuffix(body, "# EOF\n"), "%q: %d, %s", accept, status, contentType)
		for _, want := range []string{
			`nvmf_target_namespace_ready{nsid="1",subsystem="b"} 1`, "\ngo_goroutines ",
			"\nprocess_open_fds ",
		} {
			testutil.True(t, strings.Contains(body, want), "%q: no %s in:\n%s", accept, want, body)
		}
	}
	for _, test := range []struct {
		method, path string
		want         int
	}{
		{http.MethodPost, "/metrics", http.StatusMethodNotAllowed},
		{http.MethodGet, "/", http.StatusOK},
		{http.MethodGet, "/metric", http.StatusNotFound},
		{http.MethodGet, "/debug/pprof/", http.StatusNotFound},
	} {
		if status, _, _ := get(t, s, test.method, test.path, ""); status != test.want {
			t.Errorf("%s %s: %d, want %d", test.method, test.path, status, test.want)
		}
	}
}

// TestPanic: a panic fails one scrape, with a line in the log.
func TestPanic(t *testing.T) {
	var log bytes.Buffer
	var broken atomic.Bool
	broken.Store(true)
	src := source()
	namespaces := src.Namespaces
	src.Namespaces = func() []observed.Namespace {
		if broken.Load() {
			panic("injected")
		}
		return namespaces()
	}
	s := serve(t, src, slog.New(slog.NewTextHandler(&log, nil)))
	status, _, body := get(t, s, http.MethodGet, "/metrics", "")
	testutil.Equal(t, status, http.StatusInternalServerError, "%s", body)
	broken.Store(false)
	status, _, _ = get(t, s, http.MethodGet, "/metrics", "")
	testutil.True(t, status == http.StatusOK, "%v", status)
	_ = s.Close()
	testutil.True(t, strings.Contains(log.String(), "injected"), "the log does not say why:\n%s",
		log.String())
}

// dial connects without sending a request.
func dial(t *testing.T, s *httpd.Server) net.Conn {
	t.Helper()
	c := testutil.Value(net.Dial("tcp", s.Addr().String()))(t)
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testutil.Patience))
	return c
}

const request = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"

// large returns namespaces with metrics larger than the buffers of sockets.
func large() []observed.Namespace {
	list := make([]observed.Namespace, 200)
	for i := range list {
		list[i] = observed.Namespace{
			Subsystem: strings.Repeat("a", 4000), NSID: uint32(i), Health: &nvme.SMARTLog{},
		}
	}
	return list
}

// TestCloseWaitsForNoSlowScraper: a scraper that does not read a response larger than the socket
// buffers is cut off, and so is one that sends nothing.
func TestCloseWaitsForNoSlowScraper(t *testing.T) {
	src := source()
	asked := make(chan struct{})
	src.Namespaces = func() []observed.Namespace {
		close(asked)
		return large()
	}
	// A port that nobody else uses once it is closed.
	at := netip.AddrPortFrom(loopback.Addr(), testutil.FreePort(t))
	s := testutil.Value(Listen(httpd.Endpoint{Listen: at}, src, quiet))(t)
	t.Cleanup(func() { _ = s.Close() })
	slow, silent := dial(t, s), dial(t, s)
	testutil.Value(io.WriteString(slow, request))(t)
	testutil.Receive(t, "a scrape", asked)
	if _, err := io.ReadFull(slow, make([]byte, 1)); err != nil { // the answer has begun
		t.Fatal(err)
	}
	if err := s.Close(); err != nil { // in an hour, if it waits for a write
		t.Error(err)
	}
	testutil.True(t, testutil.Err(silent.Read(make([]byte, 1))) != nil,
		"a silent connection is still open")
	testutil.Is(t, testutil.Err(net.Dial("tcp", at.String())), syscall.ECONNREFUSED,
		"it still listens")
}

// TestConnectionsAreBounded: a connection beyond the limit waits until another one is closed.
func TestConnectionsAreBounded(t *testing.T) {
	s := serve(t, source(), quiet)
	answered := func(c net.Conn) {
		t.Helper()
		line, err := bufio.NewReader(c).ReadString('\n')
		testutil.True(t, err == nil && line == "HTTP/1.1 200 OK\r\n", "%q, %v", line, err)
	}
	var all []net.Conn
	for range maxConnections {
		c := dial(t, s)
		testutil.Value(io.WriteString(c, request))(t)
		answered(c)
		all = append(all, c)
	}
	more := dial(t, s)
	testutil.Value(io.WriteString(more, request))(t)
	_ = more.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	n, err := more.Read(make([]byte, 1))
	testutil.True(t, n == 0 && err != nil, "there is no bound")
	_ = more.SetReadDeadline(time.Now().Add(testutil.Patience))
	all[0].Close()
	answered(more)
}

func TestListenHints(t *testing.T) {
	taken := serve(t, source(), quiet)
	for addr, want := range map[netip.AddrPort]string{
		taken.Addr(): "another process listens there",
		netip.MustParseAddrPort("192.0.2.1:9500"): "no interface has this address",
	} {
		testutil.Fails(t, testutil.Err(Listen(httpd.Endpoint{Listen: addr}, source(), quiet)), want,
			"%v", addr)
	}
}

// TestScraperThatLeaves: a scraper that ends its connection during the answer causes no log line.
func TestScraperThatLeaves(t *testing.T) {
	src := source()
	src.Namespaces = large
	var log bytes.Buffer
	s := serve(t, src, slog.New(slog.NewTextHandler(&log, nil)))
	for range 3 {
		c := dial(t, s)
		testutil.Value(io.WriteString(c, request))(t)
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil { // the answer has begun
			t.Fatal(err)
		}
		_ = c.(*net.TCPConn).SetLinger(0) // a reset
		_ = c.Close()
	}
	if err := s.Close(); err != nil { // after all scrapes
		t.Fatal(err)
	}
	testutil.True(t, log.Len() <= 0, "%.300s", log.String())
}
