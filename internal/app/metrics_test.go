package app_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/doctor"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

const anyPort = "{transport: tcp, address: 127.0.0.1, port: 0, on_unavailable: fail}"

// scraped returns the text of the metrics.
func scraped(t *testing.T, s *harness.Harness) string {
	t.Helper()
	return testutil.Get(t, fmt.Sprintf("http://%v/metrics", s.Metrics().Addr()))
}

// TestMetricsWhileDraining: metrics are served while connections drain, and a scraper that does not
// read does not delay the end.
func TestMetricsWhileDraining(t *testing.T) {
	port := fmt.Sprint(testutil.FreePort(t))
	listener := strings.Replace(anyPort, "port: 0", "port: "+port, 1)
	s := newServer(t, app.Options{Config: parse(t, listener,
		fmt.Sprintf("metrics: {listen: '127.0.0.1:%d'}", testutil.FreePort(t)))})
	s.Hasty()
	testutil.Must(t, s.Start())
	at := s.Metrics().Addr().String()
	slow := testutil.Value(net.Dial("tcp", at))(t)
	defer slow.Close()
	testutil.Value(io.WriteString(slow, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"))(t)
	release := sync.OnceFunc(s.Block())
	defer release()
	ctx := testutil.Context(t)
	stopped := make(chan error, 1)
	go func() { stopped <- s.Server.Stop(ctx) }()
	testutil.Until(t, "the listeners, which are closed first, refuse", func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	ready := `nvmf_target_namespace_ready{nsid="1",subsystem="` + testNQN + `"} 1`
	testutil.True(t, strings.Contains(scraped(t, s), ready), "the namespace is not shown as ready")
	release()
	testutil.Check(t, testutil.Receive(t, "the end", stopped))
	testutil.Is(t, testutil.Err(net.Dial("tcp", at)), syscall.ECONNREFUSED,
		"metrics are still served")
}

// TestMetricsSecurity: metrics are for clients that know the token, over TLS only. A reload takes
// over another token and another certificate, and refuses unusable ones. No output has a token.
func TestMetricsSecurity(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
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
	s := started(t, app.Options{Load: loader(file)})
	ask := func(scheme, ca, token string) (string, error) {
		r, err := get(t, fmt.Sprintf("%s://%v/metrics", scheme, s.Metrics().Addr()), ca,
			func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) })
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
	if c, err := tls.Dial("tcp", s.Metrics().Addr().String(), &tls.Config{
		InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12,
	}); err == nil {
		c.Close()
		t.Error("TLS 1.2 is accepted")
	}
	at := s.Metrics().Addr()
	old := filepath.Join(t.TempDir(), "old")
	pem := testutil.Value(os.ReadFile(files.CA))(t)
	write(old, string(pem))
	issue(t, dir, 2000*time.Hour)
	if _, err := s.Reload(); err != nil || s.Metrics().Addr() != at {
		t.Errorf("a new certificate: %v, %v", err, s.Metrics().Addr())
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
	log := s.Log.String()
	all += log + fmt.Sprint(changes, err, out.String())
	testutil.True(t, !strings.Contains(all, first[:8]) && !strings.Contains(all, second[:8]),
		"a token is shown")
	for _, want := range []string{
		"key changed: ~ metrics.token: hidden-", "metrics request refused",
		"audit=authentication outcome=failure",
	} {
		testutil.True(t, strings.Contains(log, want), "no %q in the log:\n%s", want, log)
	}
	testutil.True(t, strings.Contains(all, `message="metrics request refused"`),
		"the refusals are not counted")
}

// TestControlRoles: roles come from the configuration and change by a reload.
func TestControlRoles(t *testing.T) {
	file := writeConfig(t, validFile)
	s := started(t, app.Options{Load: loader(file)})
	testutil.MustTrue(t, s.Roles() == nil, "there are roles")
	for text, n := range map[string]int{"control: {roles: [{user: '7', role: read}]}\n": 1, "": 0} {
		testutil.Must(t, os.WriteFile(file, []byte(validFile+text), 0o600))
		changes, err := s.Reload()
		r := s.Roles()
		testutil.True(t, err == nil && (n == 1) == (r != nil) &&
			(len(changes) != 1 || !changes[0].Restart()), "%q: %v %v %v", text, changes, r, err)
	}
}

// underLoad returns the findings of doctor between two samples.
func underLoad(socket string) []doctor.Finding {
	d := doctor.Begin(socket)
	defer d.Close()
	return d.Findings(time.Millisecond)
}

// TestUnderLoad: there is always an answer, even without load, or without a target, and counters of
// RDMA ports are read. TestCauses of tests/operation has the other findings.
func TestUnderLoad(t *testing.T) {
	socket := t.TempDir() + "/control.sock"
	s := newServer(t, app.Options{
		Config: harness.Parse(t, validFile+"control: {socket: "+socket+"}\n"),
	})
	ports := t.TempDir()
	s.CountPorts(ports)
	testutil.Must(t, s.Start())
	list := underLoad(socket)
	testutil.True(t, len(list) == 1 && list[0].Severity == doctor.OK, "without load: %+v", list)
	if list := underLoad(t.TempDir() + "/none"); len(list) != 1 || list[0].Severity != doctor.Note {
		t.Errorf("without a target: %+v", list)
	}
	counters := filepath.Join(ports, "rxe0/ports/1/hw_counters")
	testutil.Must(t, os.MkdirAll(counters, 0o700))
	count := func(n string) {
		t.Helper()
		testutil.Must(t, os.WriteFile(filepath.Join(counters, "rcvd_seq_err"), []byte(n), 0o600))
	}
	count("100\n")
	d := doctor.Begin(socket)
	defer d.Close()
	count("117\n")
	list = d.Findings(time.Millisecond)
	testutil.True(t, len(list) == 1 && list[0].Check == "rdma network" &&
		strings.Contains(list[0].Found, "port 1 of rxe0: packets were lost or sent again") &&
		strings.Contains(list[0].Found, "rcvd_seq_err=17"), "a port that loses packets: %+v", list)
}
