package app_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// get makes a request of a test for a URL, over TLS with the CA of this file unless that is "".
func get(t *testing.T, url, ca string, change func(*http.Request)) (*http.Response, error) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	if ca != "" {
		pool := x509.NewCertPool()
		pem := testutil.Value(os.ReadFile(ca))(t)
		testutil.MustTrue(t, pool.AppendCertsFromPEM(pem), "no certificate in %s", ca)
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	ctx := testutil.Context(t)
	r := testutil.Value(http.NewRequestWithContext(ctx, http.MethodGet, url, nil))(t)
	change(r)
	a, err := (&http.Client{Transport: transport}).Do(r)
	if err == nil {
		t.Cleanup(func() { _ = a.Body.Close() })
	}
	return a, err
}

// show returns the lines that the page gets, for a query.
func show(t *testing.T, s *harness.Harness, query string) *bufio.Scanner {
	t.Helper()
	a, err := get(t, "http://"+s.Page().Addr().String()+"/events"+query, "", func(*http.Request) {})
	testutil.Must(t, err)
	lines := bufio.NewScanner(a.Body)
	lines.Buffer(nil, 1<<20)
	return lines
}

// TestWeb: reloads move the page, lock it and remove it, even while it is open. It shows the
// changes that a reload would make. A refused token is in the audit and never shown.
func TestWeb(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := issue(t, dir, 1000*time.Hour)
	file := writeConfig(t, "")
	write := func(text string) {
		t.Helper()
		testutil.Must(t, os.WriteFile(file, []byte(validFile+"control: {socket: "+
			filepath.Join(dir, "sock")+"}\n"+text), 0o600))
	}
	write("web: {listen: '127.0.0.1:0'}\n")
	s := started(t, app.Options{Load: loader(file)})
	ask := func(password string) int {
		t.Helper()
		a, err := get(t, "https://"+s.Page().Addr().String(), files.CA,
			func(r *http.Request) { r.SetBasicAuth("any", password) })
		testutil.Must(t, err)
		return a.StatusCode
	}
	reload := func(text string) {
		t.Helper()
		write(text)
		testutil.Value(s.Reload("test", t.Name()))(t)
	}

	write("web: {listen: '127.0.0.1:0'}\nlog: {level: debug}\n")
	open := show(t, s, "")
	for open.Scan() && !strings.Contains(open.Text(), "log.level") {
	}
	if err := open.Err(); err != nil || !strings.Contains(open.Text(), "log.level") {
		t.Fatalf("the page does not show what a reload would change: %v", err)
	}
	token := strings.Repeat("Aa0~", 8)
	reload("web: {listen: '127.0.0.1:0', certificate: " + files.Certificate + ", key: " +
		files.Key + ", token: " + token + "}\n")
	for open.Scan() {
	}
	testutil.Equal(t, ask(token), http.StatusOK, "with the token")
	testutil.Equal(t, ask(strings.Repeat("x", 32)), http.StatusUnauthorized, "with another token")
	text := s.Log.String()
	testutil.True(t, strings.Contains(text, "page request refused") && strings.Contains(text,
		"audit=authentication") && !strings.Contains(text, token), "the log is\n%s", text)
	reload("")
	testutil.True(t, s.Page() == nil, "the page is still served")
}

// TestWebTargets: the page shows another target, over TLS and with its token, once the file of its
// CA can be used. Reloads add and remove it, and keep the page, its history and its port. The token
// is never shown.
func TestWebTargets(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir(), new(testutil.Log)
	files := issue(t, dir, 1000*time.Hour)
	token := strings.Repeat("Ab0~", 8)
	other := started(t, app.Options{Log: log.Logger(), Config: parse(t, anyPort,
		"control: {socket: ''}\nweb: {listen: '127.0.0.1:0', certificate: "+files.Certificate+
			", key: "+files.Key+", token: "+token+"}")})
	file := writeConfig(t, "")
	write := func(targets string) {
		t.Helper()
		testutil.Must(t, os.WriteFile(file, []byte(validFile+"control: {socket: ''}\n"+
			"web: {listen: '127.0.0.1:0'"+targets+"}\n"), 0o600))
	}
	write("")
	s := started(t, app.Options{Log: log.Logger(), Load: loader(file)})
	page := s.Page()
	ca := filepath.Join(dir, "ca")
	target := "{name: other, url: 'https://" + other.Page().Addr().String() + "', token: " +
		token + ", ca: " + ca + "}"
	write(", targets: [" + target + "]")
	c := testutil.Value(loader(file)())(t)
	ps := check.Certificates(c)
	testutil.True(t, len(ps) == 1 && strings.Contains(ps.Error(),
		"web.targets[0].ca: "+ca+": no such file"), "check says %v", ps)
	testutil.Value(s.Reload("test", t.Name()))(t)
	lines, seen := show(t, s, "?target=other"), ""
	until := func(text string) {
		t.Helper()
		for lines.Scan() {
			if seen += lines.Text(); strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("%q is not shown: %v", text, lines.Err())
	}
	until("no such file or directory: correct its ca in web.targets")
	testutil.Must(t, os.WriteFile(ca, testutil.Value(os.ReadFile(files.CA))(t), 0o600))
	until(`data: {"time"`)
	until(`{"name":"other","error":""`)
	write("")
	testutil.Value(s.Reload("test", t.Name()))(t)
	for lines.Scan() { // until it is closed
	}
	lines = show(t, s, "?target=other")
	testutil.True(t, s.Page() == page, "the page has begun again")
	until("event: targets")
	if lines.Scan(); strings.Contains(lines.Text(), "other") {
		t.Errorf("it is still there: %s", lines.Text())
	}
	testutil.True(t, !strings.Contains(seen+log.String(), token), "the token is shown")
	testutil.True(t, strings.Contains(log.String(), "key changed: ~ web.targets"),
		"the log does not say that a key has changed:\n%s", log)
}
