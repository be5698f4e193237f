package web

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m, func() error { return nil }) }

// source is empty except for values set by a test, and counts how often it is asked.
func source(asked *atomic.Int64) Source {
	return Source{
		Source: observed.Source{
			Status: func() observed.Status {
				asked.Add(1)
				return observed.Status{}
			},
			Listeners:    func() []observed.Listener { return nil },
			Subsystems:   func() []observed.Subsystem { return nil },
			Namespaces:   func() []observed.Namespace { return nil },
			Refusals:     func() []observed.Refusal { return nil },
			Events:       func(uint64) ([]observed.Event, <-chan struct{}) { return nil, nil },
			Connections:  func(context.Context) ([]observed.Connection, error) { return nil, nil },
			Latency:      func(context.Context) ([]observed.Latency, error) { return nil, nil },
			Hosts:        func() []observed.Host { return nil },
			Reactors:     func(context.Context) ([]observed.Reactor, error) { return nil, nil },
			Groups:       func() []observed.Group { return nil },
			PortCounters: func() []observed.PortCounter { return nil },
			Disks:        func(context.Context) ([]observed.Disk, error) { return nil, nil },
		},
		Plan: func(context.Context) (control.Plan, error) { return control.Plan{}, nil },
	}
}

func serve(t *testing.T, c httpd.Endpoint, src Source) *Server {
	t.Helper()
	c.Listen = netip.MustParseAddrPort("127.0.0.1:0")
	s := testutil.Value(Listen(c, src, nil, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(func() { testutil.Check(t, s.Close()) })
	return s
}

// ask sends a request. The caller closes the body.
func ask(t *testing.T, s *Server, method, path string, header map[string]string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method,
		fmt.Sprintf("http://%v%s", s.Addr(), path), nil)
	testutil.Must(t, err)
	for k, v := range header {
		if r.Header.Set(k, v); k == "Host" {
			r.Host = v
		}
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	a, err := client.Do(r)
	testutil.Must(t, err)
	t.Cleanup(func() { _ = a.Body.Close() })
	return a
}

// TestRequests: only content of the page is served, by GET, to clients that ask for this address
// and know the password. Every answer has the policy.
func TestRequests(t *testing.T) {
	var asked, refused atomic.Int64
	open := serve(t, httpd.Endpoint{}, source(&asked))
	locked := serve(t, httpd.Endpoint{
		Admits:  func(p string) bool { return p == "right" },
		Refused: func(netip.AddrPort, error) { refused.Add(1) },
	}, source(&asked))
	basic := func(p string) map[string]string {
		r := http.Request{Header: http.Header{}}
		r.SetBasicAuth("any", p)
		return map[string]string{"Authorization": r.Header.Get("Authorization")}
	}
	header := func(k, v string) map[string]string { return map[string]string{k: v} }
	for _, c := range []struct {
		s            *Server
		method, path string
		header       map[string]string
		want         int
	}{
		{open, "GET", "/", nil, 200},
		{open, "GET", "/static/page.js", nil, 200},
		{open, "GET", "/static/icon.svg", nil, 200},
		{open, "GET", "/static/index.html", nil, 404},
		{open, "GET", "/static/", nil, 404},
		{open, "GET", "/static/..%2fserver.go", nil, 400},
		{open, "GET", "/v1/status", nil, 404},
		{open, "POST", "/", nil, 405},
		{open, "PUT", "/events", nil, 405},
		{open, "DELETE", "/static/page.js", nil, 405},
		{open, "GET", "/", header("Host", "evil.example"), 421},
		{open, "GET", "/", header("Host", "evil.example:80"), 421},
		{open, "GET", "/", header("Host", "127.0.0.1.evil.example"), 421},
		{open, "GET", "/", header("Host", "localhost:1"), 200},
		{open, "GET", "/", header("Host", "[::1]:1"), 200},
		{open, "GET", "/events", header("Sec-Fetch-Site", "cross-site"), 403},
		{open, "GET", "/events", header("Origin", "http://evil.example"), 403},
		{open, "GET", "/events", header("Origin", "null"), 403},
		{open, "GET", "/", header("Sec-Fetch-Site", "cross-site"), 200}, // a link
		{locked, "GET", "/", nil, 401},
		{locked, "GET", "/events", basic("wrong"), 401},
		{locked, "GET", "/", basic("right"), 200},
		{locked, "GET", "/", header("Authorization", "Bearer right"), 200},
		{locked, "GET", "/", header("Authorization", "Bearer wrong"), 401},
		{locked, "GET", "/", header("Authorization", "right"), 401},
	} {
		a := ask(t, c.s, c.method, c.path, c.header)
		testutil.True(t, a.StatusCode == c.want, "%s %s %v: %s, want %d", c.method, c.path,
			c.header, a.Status, c.want)
		p := a.Header.Get("Content-Security-Policy")
		testutil.True(t, strings.Contains(p, "default-src 'none'") && !strings.Contains(p,
			"unsafe"), "%s %s: the policy is %q", c.method, c.path, p)
	}
	testutil.Equal(t, refused.Load(), 3, "refusals are told of")
	n := asked.Load()
	testutil.True(t, n == 0, "the target was asked %d times, and nobody looks", n)
}

// turns makes the sampler make a state each time that a test sends to the channel.
func turns(s *Server) chan<- time.Time {
	turn := make(chan time.Time)
	s.sampler.mu.Lock()
	defer s.sampler.mu.Unlock()
	s.sampler.turn = func(time.Duration) <-chan time.Time { return turn }
	return turn
}

// next reads the next state of a stream.
func next(t *testing.T, r *bufio.Reader) (s state) {
	t.Helper()
	for {
		line := testutil.Value(r.ReadString('\n'))(t)
		if text, ok := strings.CutPrefix(line, "data: "); ok {
			testutil.Must(t, json.Unmarshal([]byte(text), &s))
			return s
		}
	}
}

// TestStreams: pages share one sampler, which ends with the last of them. Too many are refused, and
// get a place when others have gone.
func TestStreams(t *testing.T) {
	var asked atomic.Int64
	s := serve(t, httpd.Endpoint{}, source(&asked))
	turn := turns(s)
	var open []*http.Response
	for range maxStreams {
		a := ask(t, s, "GET", "/events", nil)
		next(t, bufio.NewReader(a.Body))
		open = append(open, a)
	}
	n := asked.Load()
	testutil.True(t, n == 1, "%d pages have asked the target %d times", maxStreams, n)
	a := ask(t, s, "GET", "/events", nil)
	testutil.True(t, a.StatusCode == http.StatusServiceUnavailable, "one more page: %s", a.Status)
	for _, a := range open {
		_ = a.Body.Close()
	}
	testutil.Until(t, "places of pages that have gone", func() bool {
		a := ask(t, s, "GET", "/events", nil)
		_ = a.Body.Close()
		return a.StatusCode == http.StatusOK
	})
	testutil.Until(t, "the end of the sampler", func() bool {
		select {
		case turn <- time.Time{}:
		default:
		}
		s.sampler.mu.Lock()
		defer s.sampler.mu.Unlock()
		return !s.sampler.running
	})
}

// TestStalledReader: a client that reads nothing loses its connection, and delays neither the
// states of others nor the end of the server. A target that is busy, or has long lists, is shown as
// far as it is known.
func TestStalledReader(t *testing.T) {
	var asked atomic.Int64
	src := source(&asked)
	long := strings.Repeat("<b>", 1000)
	src.Namespaces = func() []observed.Namespace {
		list := make([]observed.Namespace, 5000)
		for i := range list {
			list[i] = observed.Namespace{
				Subsystem: long, NSID: uint32(i + 1), State: "ready", Reads: 1,
			}
			if i >= 4000 {
				list[i].State = "degraded"
			} else if i >= 1000 {
				list[i].State = "standby"
			}
		}
		return list
	}
	src.Latency = func(context.Context) ([]observed.Latency, error) {
		return nil, errors.New("too busy")
	}
	src.Plan = func(context.Context) (control.Plan, error) {
		return control.Plan{Changes: make([]control.Change, 5000)}, errors.New("no such file")
	}
	src.Subsystems = func() []observed.Subsystem {
		return []observed.Subsystem{{Hosts: make([]string, 5000)}}
	}
	s := serve(t, httpd.Endpoint{}, src)
	s.sampler.turn = func(time.Duration) <-chan time.Time {
		return time.After(10 * time.Millisecond)
	}
	s.patient.Store(int64(testutil.Patience)) // the one that reads may be late
	r := bufio.NewReader(ask(t, s, "GET", "/events", nil).Body)
	s.patient.Store(int64(100 * time.Millisecond))
	for range maxStreams - 1 {
		c := testutil.Value(net.Dial("tcp", s.Addr().String()))(t)
		defer c.Close()
		_ = c.(*net.TCPConn).SetReadBuffer(4096)
		_, _ = io.WriteString(c, "GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		_, _ = io.ReadFull(c, make([]byte, 12)) // the answer has begun, or has been cut off already
	}
	got := next(t, r)
	for got.Plan.Error == "" || len(s.streams) > 1 {
		got = next(t, r)
	}
	testutil.True(t, len(got.Namespaces) == maxRows && got.More["namespaces"] == 5000-maxRows &&
		got.Namespaces[0].NSID == 4001 && got.Traffic.Ready == 4000 && got.Traffic.Reads == 5000,
		"%d namespaces, %d more, first %d, %d reads", len(got.Namespaces), got.More["namespaces"],
		got.Namespaces[0].NSID, got.Traffic.Reads)
	testutil.True(t, len(got.Plan.Changes) == maxRows && got.More["changes"] == 5000-maxRows &&
		len(got.Subsystems[0].Hosts) == maxRows && got.Subsystems[0].HostCount == 5000,
		"%d changes, %d more, %d of %d hosts", len(got.Plan.Changes), got.More["changes"],
		len(got.Subsystems[0].Hosts), got.Subsystems[0].HostCount)
	testutil.True(t, got.Errors["latency"] == "too busy" && got.Plan.Error == "no such file",
		"errors %v, plan %q", got.Errors, got.Plan.Error)
	texts := fmt.Sprint(got.Findings)
	for _, want := range []string{
		"is degraded", "not ready: 995", "cannot be applied", "too busy",
	} {
		testutil.True(t, strings.Contains(texts, want), "no finding %q: %.500s", want, texts)
	}
}

// TestBucket: buckets are in order, and a power of two begins one.
func TestBucket(t *testing.T) {
	last := 0
	for ns := int64(0); ns < 1<<20; ns++ {
		b := bucket(ns)
		testutil.MustTrue(t, b >= last && b <= last+8 && (ns < 4 || ns&(ns-1) != 0 || b != last),
			"%d ns: bucket %d after %d", ns, b, last)
		last = b
	}
}

// TestPanic: a panic in code that only displays ends neither the target nor the page.
func TestPanic(t *testing.T) {
	var asked atomic.Int64
	src := source(&asked)
	src.Disks = func(context.Context) ([]observed.Disk, error) { panic("disks") }
	status := src.Status
	src.Status = func() observed.Status {
		if status(); asked.Load() == 1 {
			panic("status")
		}
		return observed.Status{Version: "1"}
	}
	s := serve(t, httpd.Endpoint{}, src)
	turn := turns(s)
	r := bufio.NewReader(ask(t, s, "GET", "/events", nil).Body)
	turn <- time.Time{} // there is no state to see in the first turn
	got := next(t, r)
	testutil.True(t, got.Status.Version == "1", "%+v", got.Status)
	testutil.True(t, got.Namespaces != nil && got.Subsystems != nil,
		"the page needs lists, not null")
}

// TestClosePlan: a program that prints keys does not delay Close.
func TestClosePlan(t *testing.T) {
	var asked atomic.Int64
	src, begun := source(&asked), make(chan struct{})
	src.Plan = func(ctx context.Context) (control.Plan, error) {
		close(begun)
		<-ctx.Done()
		return control.Plan{}, ctx.Err()
	}
	s := serve(t, httpd.Endpoint{}, src)
	ask(t, s, "GET", "/events", nil)
	<-begun
	testutil.Check(t, s.Close())
}

// TestLoadFindings: events since an earlier state are reported, not earlier ones. Of each check
// only some findings are shown, with the number of the others. Worse findings of other kinds stay.
func TestLoadFindings(t *testing.T) {
	var asked atomic.Int64
	src := source(&asked)
	src.Latency = func(context.Context) ([]observed.Latency, error) {
		n := 1000 * uint64(asked.Load())
		return []observed.Latency{{
			Host: "<b>", Subsystem: "nqn", NSID: 7, IOs: n, Operation: "read",
			Stages:  []observed.LatencyStage{{Stage: "backend", MeanSeconds: 0.5}},
			Buckets: []observed.LatencyBucket{{NS: 5e8, Count: n}},
		}}, nil
	}
	src.Connections = func(context.Context) (list []observed.Connection, err error) {
		n := uint64(asked.Load())
		for i := range 2 * maxAlike {
			list = append(list, observed.Connection{
				Host: fmt.Sprint("host", i), QID: 1, Retransmits: 50 * n, Commands: 1000 * n,
				Remote: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(i)),
			})
		}
		return list, nil
	}
	src.PortCounters = func() []observed.PortCounter {
		return []observed.PortCounter{{
			Device: "rxe0", Port: "1", Counter: "rcvd_seq_err", Value: 20 * uint64(asked.Load()),
		}}
	}
	s := serve(t, httpd.Endpoint{}, src)
	turn, start := turns(s), time.Now()
	s.sampler.now = func() time.Time { return start.Add(time.Duration(asked.Load()) * Every) }
	r := bufio.NewReader(ask(t, s, "GET", "/events", nil).Body)
	if got := next(t, r).Findings; len(got) > 0 {
		t.Errorf("at first sight: %v", got)
	}
	turn <- time.Time{}
	got := next(t, r).Findings
	texts := fmt.Sprint(got)
	testutil.True(t, len(got) == 2+maxAlike+1 && got[maxAlike+2].Text == fmt.Sprintf("And %d more.",
		maxAlike) && strings.Contains(texts,
		"(read) of <b> for namespace 7 of nqn took 500 ms or more in the "+"last 2 s; 100 %") &&
		strings.Contains(texts, "The storage is slow. Fix: nvmf-target disks") &&
		strings.Contains(texts,
			"The target has sent 50 packets to host4 again in the last 2 s, "+"of about 1000.") &&
		strings.Contains(texts, "sent again in the last 2 s: rcvd_seq_err=20"), "%d findings: %s",
		len(got), texts)
}

// TestErrorsInOrder: unknown facts have a fixed place, so that they are not read aloud again and
// again.
func TestErrorsInOrder(t *testing.T) {
	s := &state{Errors: map[string]string{}}
	for _, what := range []string{"reactors", "latency", "hosts", "disks", "a", "b", "c", "d"} {
		s.Errors[what] = "busy"
	}
	for range 20 {
		list := findings(s)
		testutil.MustTrue(t, strings.Contains(list[2].Text, "(c)") && strings.Contains(list[7].Text,
			"(reactors)"), "%v", list)
	}
}

// TestGroups: of many groups of gateways the page has the ones with problems first. It has findings
// about them.
func TestGroups(t *testing.T) {
	src := source(new(atomic.Int64))
	src.Groups = func() (list []observed.Group) {
		for i := range maxRows {
			list = append(list, observed.Group{ANAGroup: uint32(i + 3), Holder: "a"})
		}
		return append(list, observed.Group{ANAGroup: 1, Drained: true, Differences: []string{"d."}},
			observed.Group{ANAGroup: 2, State: "joining"},
			observed.Group{ANAGroup: 2, Holder: "b", Problem: "It is full."})
	}
	s := &state{
		More: map[string]int{}, Groups: first(&state{More: map[string]int{}}, "groups",
			src.Groups(), isTroubled),
	}
	testutil.True(t, len(s.Groups) == maxRows && s.Groups[0].ANAGroup == 1, "%+v", s.Groups[0])
	got := ""
	for _, f := range findings(s) {
		got += f.Severity + ": " + f.Text + "\n"
	}
	testutil.Equal(t, got, `warning: No gateway serves ANA group 1.
warning: ANA group 1 of gateways: d.
warning: ANA group 2 of gateways: It is full.
note: ANA group 1 was given away here, and this gateway does not take it.
`, "")
}

// TestAddressInUse: a page that cannot be served leaves no goroutine (see TestMain).
func TestAddressInUse(t *testing.T) {
	at := httpd.Endpoint{Listen: serve(t, httpd.Endpoint{}, source(new(atomic.Int64))).Addr()}
	if _, err := Listen(at, source(new(atomic.Int64)), []Target{{}},
		slog.New(slog.DiscardHandler)); err == nil {
		t.Error("two pages are served at one address")
	}
}
