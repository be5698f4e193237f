package app

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

	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestWeb: reloads move the page, lock it and remove it, even while it is open. It shows the
// changes that a reload would make. A refused token is in the audit and never shown.
func TestWeb(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir(), new(testutil.Log)
	files := issue(t, dir, 1000*time.Hour)
	pem := testutil.Value(os.ReadFile(files.CA))(t)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	file := writeConfig(t, "")
	write := func(text string) {
		t.Helper()
		testutil.Must(t, os.WriteFile(file, []byte(validFile+"control: {socket: "+
			filepath.Join(dir, "sock")+"}\n"+text), 0o600))
	}
	write("web: {listen: '127.0.0.1:0'}\n")
	s := started(t, Options{Log: log.Logger(), Load: loader(file)})
	ctx := testutil.Context(t)
	ask := func(scheme, path, password string) *http.Response {
		t.Helper()
		r := testutil.Value(http.NewRequestWithContext(ctx, http.MethodGet,
			scheme+"://"+s.web.server.Addr().String()+path, nil))(t)
		if password != "" {
			r.SetBasicAuth("any", password)
		}
		client := http.Client{Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool},
		}}
		a, err := client.Do(r)
		testutil.Must(t, err)
		t.Cleanup(func() { _ = a.Body.Close() })
		return a
	}
	reload := func(text string) {
		t.Helper()
		write(text)
		testutil.Value(s.Reload("test", t.Name()))(t)
	}

	write("web: {listen: '127.0.0.1:0'}\nlog: {level: debug}\n")
	open := bufio.NewScanner(ask("http", "/events", "").Body)
	open.Buffer(nil, 1<<20)
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
	a := ask("https", "/", token)
	testutil.True(t, a.StatusCode == http.StatusOK, "with the token: %s", a.Status)
	a = ask("https", "/", strings.Repeat("x", 32))
	testutil.True(t, a.StatusCode == http.StatusUnauthorized, "with another token: %s", a.Status)
	text := log.String()
	testutil.True(t, strings.Contains(text, "page request refused") && strings.Contains(text,
		"audit=authentication") && !strings.Contains(text, token), "the log is\n%s", text)
	reload("")
	testutil.True(t, s.web.server == nil, "the page is still served")
}

// TestWebTargets: the page shows another target, over TLS and with its token, once the file of its
// CA can be used. Reloads add and remove it, and keep the page, its history and its port. The token
// is never shown.
func TestWebTargets(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir(), new(testutil.Log)
	files := issue(t, dir, 1000*time.Hour)
	token := strings.Repeat("Ab0~", 8)
	other := started(t, Options{Log: log.Logger(), Config: parse(t, anyPort,
		"control: {socket: ''}\nweb: {listen: '127.0.0.1:0', certificate: "+files.Certificate+
			", key: "+files.Key+", token: "+token+"}")})
	file := writeConfig(t, "")
	write := func(targets string) {
		t.Helper()
		testutil.Must(t, os.WriteFile(file, []byte(validFile+"control: {socket: ''}\n"+
			"web: {listen: '127.0.0.1:0'"+targets+"}\n"), 0o600))
	}
	write("")
	s := started(t, Options{Log: log.Logger(), Load: loader(file)})
	page := s.web.server
	ca := filepath.Join(dir, "ca")
	target := "{name: other, url: 'https://" + other.web.server.Addr().String() + "', token: " +
		token + ", ca: " + ca + "}"
	write(", targets: [" + target + "]")
	c := testutil.Value(loader(file)())(t)
	ps := check.Certificates(c)
	testutil.True(t, len(ps) == 1 && strings.Contains(ps.Error(),
		"web.targets[0].ca: "+ca+": no such file"), "check says %v", ps)
	testutil.Value(s.Reload("test", t.Name()))(t)
	open := func() *bufio.Scanner {
		r := testutil.Value(http.NewRequestWithContext(testutil.Context(t), http.MethodGet,
			"http://"+page.Addr().String()+"/events?target=other", nil))(t)
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		a, err := client.Do(r)
		testutil.Must(t, err)
		t.Cleanup(func() { _ = a.Body.Close() })
		lines := bufio.NewScanner(a.Body)
		lines.Buffer(nil, 1<<20)
		return lines
	}
	lines, seen := open(), ""
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
	lines = open()
	testutil.True(t, s.web.server == page, "the page has begun anew")
	until("event: targets")
	if lines.Scan(); strings.Contains(lines.Text(), "other") {
		t.Errorf("it is still there: %s", lines.Text())
	}
	testutil.True(t, !strings.Contains(seen+log.String(), token), "the token is shown")
	testutil.True(t, strings.Contains(log.String(), "key changed: ~ web.targets"),
		"the log does not say that a key has changed:\n%s", log)
}
