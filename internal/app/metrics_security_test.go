package app

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

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

// TestControlRoles: roles come from the configuration and change by a reload.
func TestControlRoles(t *testing.T) {
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
