package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
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
	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/metrics"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/backendtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/testing/verbstest"
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
	network := verbstest.New(verbstest.Options{Async: true})
	t.Cleanup(network.Close) // after the server has stopped, which needs it
	addr := netip.MustParseAddr("10.0.0.1")
	network.AddHost("target", verbstest.RoCE("rxe0", addr))
	network.AddHost("host", verbstest.RoCE("rxe0", netip.MustParseAddr("10.0.0.2")))
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
	_, q := oneQueue(ctx, t,
		host.RDMA{Provider: network.Provider("host"), Addr: netip.AddrPortFrom(addr, 4420)})
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

// TestMetricsSecurity: metrics are for clients that know the token, over TLS only. A reload takes
// over another token and another certificate, and refuses unusable ones. No output has a token.
func TestMetricsSecurity(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir(), new(testutil.Log)
	files := issue(t, dir, 1000*time.Hour)
	first, second := strings.Repeat("Aa0~", 8), strings.Repeat("Zz9_", 8)
	token, socket := filepath.Join(dir, "token"), filepath.Join(dir, "sock")
	file := writeConfig(t, "")
	write := func(name, text string) {
		t.Helper()
		testutil.Must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	write(token, first+"\n")
	config := validFile + "metrics: {listen: '127.0.0.1:0', certificate: " + files.Certificate +
		", key: " + files.Key + ", token_file: " + token + "}\ncontrol: {socket: " + socket + "}\n"
	write(file, config)
	s := started(t, Options{Log: log.Logger(), Load: loader(file)})
	ask := func(scheme, ca, token string) (string, error) {
		pool := x509.NewCertPool()
		pem, err := os.ReadFile(ca)
		testutil.MustTrue(t, err == nil && pool.AppendCertsFromPEM(pem), "%v", err)
		client := http.Client{Timeout: testTimeout, Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool},
		}}
		req := testutil.Value(http.NewRequest(http.MethodGet, fmt.Sprintf("%s://%v/metrics", scheme,
			s.metrics.server.Addr()), nil))(t)
		req.Header.Set("Authorization", "Bearer "+token)
		r, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if r.StatusCode != http.StatusOK {
			return string(b), errors.Join(err, errors.New(r.Status))
		}
		return string(b), err
	}
	served := func(token string, want bool) string {
		t.Helper()
		body, err := ask("https", files.CA, token)
		testutil.True(t, (err == nil) == want && want == strings.Contains(body,
			"nvmf_target_build_info"), "served %v, want %v: %v", err == nil, want, err)
		return body
	}
	all := served(first, true)
	served(second, false)
	served("", false)
	if body, err := ask("http", files.CA, first); err == nil {
		t.Errorf("served without TLS: %.100s", body)
	}
	if c, err := tls.Dial("tcp", s.metrics.server.Addr().String(), &tls.Config{
		InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12,
	}); err == nil {
		c.Close()
		t.Error("TLS 1.2 is accepted")
	}
	var silent []net.Conn
	for range 100 { // more than there are places for handshakes, from the same address
		c := testutil.Value(net.Dial("tcp", s.metrics.server.Addr().String()))(t)
		silent = append(silent, c)
	}
	served(first, true)
	testutil.Until(t, "silent peers do not wait for their time limit", func() bool {
		return strings.Contains(log.String(), "evicted by a newer connection")
	})
	for _, c := range silent {
		c.Close()
	}

	at := s.metrics.server.Addr()
	old := filepath.Join(t.TempDir(), "old")
	pem := testutil.Value(os.ReadFile(files.CA))(t)
	write(old, string(pem))
	issue(t, dir, 2000*time.Hour)
	if _, err := s.Reload(); err != nil || s.metrics.server.Addr() != at {
		t.Errorf("a new certificate: %v, %v", err, s.metrics.server.Addr())
	}
	served(first, true)
	testutil.True(t, testutil.Err(ask("https", old, first)) != nil,
		"the old certificate is still served")
	write(token, second+"\n")
	changes, err := s.Reload()
	testutil.Check(t, err)
	served(first, false)
	all += served(second, true)
	all += readControl(t, socket)
	write(files.Key, "")
	if _, err := s.Reload(); err == nil || !strings.Contains(err.Error(), ": metrics.key: ") {
		t.Errorf("a key file that is empty: %v", err)
	}
	served(second, true)
	var out strings.Builder
	err = check.File(file, nil, &out)
	testutil.True(t, err != nil && strings.Contains(err.Error(), "metrics.key: "), "%v", err)
	write(file, strings.Replace(config, ", key: "+files.Key, "", 1))
	_, err = s.Reload()
	testutil.True(t, err != nil, "a certificate without key")
	all += log.String() + fmt.Sprint(changes, err, out.String())
	testutil.True(t, !strings.Contains(all, first[:8]) && !strings.Contains(all, second[:8]),
		"a token is shown")
	testutil.True(t, strings.Contains(log.String(), "key changed: ~ metrics.token: hidden-") &&
		strings.Contains(log.String(), "metrics request refused") && strings.Contains(log.String(),
		"audit=authentication outcome=failure"), "the log:\n%s", log)
	testutil.True(t, strings.Contains(all, `message="metrics request refused"`),
		"the refusals are not counted")
}

// TestControlRoles: roles come from the configuration and change by a reload. Unknown names cause
// warnings.
func TestControlRoles(t *testing.T) {
	c := parse(t, anyPort, "control: {roles: [{user: root, role: read}, {user: '7', "+
		"role: operate}, {group: no such group, role: admin}, {group: '8', role: admin}]}")
	r, ps := check.Roles(c)
	testutil.True(t, len(r.Users) == 2 && r.Users[0].String() == "read" &&
		r.Users[7].String() == "operate" && len(r.Groups) == 1 && r.Groups[8].String() == "admin",
		"%+v", r)
	testutil.True(t, len(ps) == 1 && strings.Contains(ps[0].Error(),
		"control.roles[2]: there is no group ") && !ps.Failed(), "%v", ps)
	file := writeConfig(t, validFile)
	s := newServer(t, Options{Load: loader(file)})
	err := s.Start()
	testutil.MustTrue(t, err == nil && s.roles.Load() == nil, "%v", err)
	for text, n := range map[string]int{"control: {roles: [{user: '7', role: read}]}\n": 1, "": 0} {
		testutil.Must(t, os.WriteFile(file, []byte(validFile+text), 0o600))
		changes, err := s.Reload()
		r := s.roles.Load()
		testutil.True(t, err == nil && (n == 1) == (r != nil) &&
			(len(changes) != 1 || !changes[0].Restart()), "%q: %v %v %v", text, changes, r, err)
	}
}

// TestHostMetrics: the activity of a named host stays counted after it leaves, and the names of
// others are no labels. A queue that is too small shows.
func TestHostMetrics(t *testing.T) {
	t.Parallel()
	me := hostOptions(testNQN).HostNQN
	c := parsed(t, `
listeners: [`+anyPort+`]
hosts: [{nqn: "`+me+`"}, {nqn: "nqn.2026-11.io.nvmf-target:away"}]
subsystems:
  - nqn: "`+testNQN+`"
    allow_any_host: true
    namespaces: [{nsid: 1, backend: delay, latency: 20ms, of: {backend: ram, size: 16MiB}}]
reactors: {count: 1, memory: 16MiB}
metrics: {listen: "127.0.0.1:0"}
`)
	s := started(t, Options{Config: c})
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	load := func(nqn string, depth, commands int) (leave func()) {
		o := hostOptions(testNQN)
		o.HostNQN = nqn
		h := testutil.Value(host.Connect(ctx, host.TCP{Addr: s.Addrs()[0].AddrPort}, o))(t)
		q := testutil.Value(h.OpenQueue(ctx, 1, depth))(t)
		for done := 0; done < commands; {
			for q.Free() > 0 && q.Outstanding()+done < commands {
				var flush host.Op
				flush.Flush(1)
				testutil.Value(q.Submit(&flush))(t)
			}
			n, err := q.Poll(make([]host.Completion, depth))
			if done += n; err != nil || ctx.Err() != nil {
				t.Fatal(err, ctx.Err())
			}
		}
		return func() { _ = q.Close(); h.Close() }
	}
	of := func(name, nqn string) string { return fmt.Sprintf("nvmf_target_%s{host=%q}", name, nqn) }
	leave := load(me, 4, 30)
	got := scrape(t, s)
	expect(t, got, map[string]float64{
		of("host_controllers", me):                                1,
		of("host_controllers", "nqn.2026-11.io.nvmf-target:away"): 0,
		of("host_commands_total", me):                             31, // with Connect
		of("host_commands_total", ""):                             0,
	})
	full := got[of("host_nearly_full_commands_total", me)]
	if rtt := got[of("host_tcp_rtt_seconds", me)]; full < 5 || full > 30 || rtt <= 0 || rtt > 10 {
		t.Errorf("%v of 31 commands found a full queue, RTT %v", full, rtt)
	}
	leave()
	load("nqn.2026-11.io.nvmf-target:unknown", 64, 30)()
	defer load(me, 64, 30)()
	got = scrape(t, s)
	expect(t, got, map[string]float64{
		of("host_commands_total", me):             62,
		of("host_nearly_full_commands_total", me): full,
		of("host_nearly_full_commands_total", ""): 0,
	})
	for name := range got {
		testutil.True(t, !strings.Contains(name, ":unknown"), "there is %s", name)
	}
	busy := func(state string) float64 {
		return got[`nvmf_target_reactor_seconds_total{reactor="0",state="`+state+`"}`]
	}
	if busy("busy") <= 0 || busy("asleep") <= 0 || busy("polling") < 0 ||
		got[`nvmf_target_reactor_steps_total{poller="tcp",reactor="0"}`] < 60 {
		t.Error(got)
	}
}

// TestEndingConnection: the counters of a connection are not counted again after the kernel has
// forgotten it, and a discovery controller is no path.
func TestEndingConnection(t *testing.T) {
	var totals hostTotals
	c := observed.Connection{Host: "a", QID: 1, Commands: 1000, LinkKnown: true, Retransmits: 3}
	discovery := observed.Connection{
		Host: "a", Discovery: true, Remote: netip.MustParseAddrPort("127.0.0.1:1"),
	}
	look := func() metrics.Host {
		hosts := map[string]*metrics.Host{"": {}, "a": {}}
		totals.update([]observed.Connection{c, discovery}, hosts)
		return *hosts["a"]
	}
	first := look()
	c.Commands, c.LinkKnown, c.Retransmits = 1001, false, 0
	last := look()
	testutil.True(t, first.Commands == 1000 && last.Commands == 1001 && last.Retransmits == 3,
		"%+v, then %+v", first, last)
	testutil.Equal(t, last.Controllers, 0, "paths")
}
