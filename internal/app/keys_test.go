package app

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// shows reports whether a text has a part of a key, in any of the forms in which Go prints it.
func shows(t *testing.T, text, key string) bool {
	t.Helper()
	encoded := strings.Split(key, ":")[2]
	raw := testutil.Value(base64.StdEncoding.DecodeString(encoded))(t)
	raw = raw[8:16]
	for _, part := range []string{
		encoded[12:24], string(raw), fmt.Sprintf("%x", raw), fmt.Sprintf("%X", raw),
		strings.Trim(fmt.Sprint(raw), "[]"), fmt.Sprintf("%#v", raw)[len("[]byte{"):30],
	} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// readControl reads everything from the control interface.
func readControl(t *testing.T, socket string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	get := func(path string) []byte {
		answer, err := client.Get("http://control" + path)
		testutil.Must(t, err)
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		ok := answer.StatusCode == http.StatusOK || path == "/v1/groups/configuration" // not here
		testutil.True(t, err == nil && ok, "%s: %v %v", path, answer.Status, err)
		return b
	}
	var api struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	testutil.Must(t, json.Unmarshal(get("/v1/openapi.json"), &api))
	var all strings.Builder
	var objects []observed.Configured
	testutil.Must(t, json.Unmarshal(get("/v1/objects"), &objects))
	for _, o := range objects {
		all.Write(get(o.Path))
	}
	for path, methods := range api.Paths {
		if methods["get"] == nil || strings.Contains(path, "{") &&
			!strings.Contains(path, "{profile}") {
			continue
		}
		for _, profile := range []string{"goroutine?debug=2", "heap?debug=1", "allocs?debug=1"} {
			all.Write(get(strings.ReplaceAll(path, "{profile}", profile)))
			if !strings.Contains(path, "{profile}") {
				break
			}
		}
	}
	for _, part := range []string{"goroutine ", "heap profile"} {
		testutil.True(t, strings.Contains(all.String(), part), "the control interface has no %s",
			part)
	}
	return all.String()
}

// readServed reads the metrics, and the state that the page gets.
func readServed(t *testing.T, s *Server) string {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testTimeout}
	read := func(url string, until func(line string) bool) string {
		r := testutil.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
		a, err := c.Do(r)
		testutil.Must(t, err)
		defer a.Body.Close()
		var all strings.Builder
		lines := bufio.NewScanner(a.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() && !until(lines.Text()) {
			all.WriteString(lines.Text() + "\n")
		}
		return all.String()
	}
	state := ""
	read(fmt.Sprintf("http://%v/events", s.web.server.Addr()), func(line string) bool {
		state = line
		return strings.HasPrefix(line, "data: ")
	})
	metrics := read(fmt.Sprintf("http://%v/metrics", s.metrics.server.Addr()),
		func(string) bool { return false })
	testutil.True(t, strings.Contains(metrics, "authentications_total") && strings.Contains(state,
		testNQN), "metrics or the page lack something: %.200s, %.200s", metrics, state)
	return metrics + state
}

func needTLS(t *testing.T) {
	t.Helper()
	if err := openssl.Supported(); err != nil {
		t.Skip(err)
	}
}

// TestExpiringKeys: there are warnings of keys for 30 days before they expire and afterwards. While
// the target runs, they come once a day and when keys expire.
func TestExpiringKeys(t *testing.T) {
	t.Parallel()
	key := testutil.Value(auth.NewKey(32, auth.NoHash))(t)
	start := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	c := &config.Config{Hosts: []config.Host{{}, {NQN: "h"}}}
	c.Hosts[1].Key, c.Hosts[1].Until = key, start.Add(40*24*time.Hour)
	log := new(testutil.Log)
	w := keyWatch{start, start}
	warnings := 0
	for day := range 45 {
		for minute := 0; minute < 24*60; minute += 10 {
			now := start.Add(time.Duration(day)*24*time.Hour + time.Duration(minute)*time.Minute)
			w.check(c, log.Logger(), now)
			want, before := 0, warnings
			warnings = strings.Count(log.String(), "hosts[1].keys_until: the keys of the host")
			if day > 10 && minute == 0 {
				want = 1
			}
			testutil.MustEqual(t, warnings-before, want, "day %d, minute %d: lines", day, minute)
		}
	}
	testutil.Equal(t, strings.Count(log.String(), "cannot connect any more then"), 29,
		"warnings before")
	testutil.True(t, strings.Contains(log.String(), "expired on"),
		"nobody is told that they have expired")
	c.Hosts[1].Until = start.Add(45*24*time.Hour + 5*time.Minute)
	before := strings.Count(log.String(), "expired on")
	for minute := range 10 {
		w.check(c, log.Logger(), start.Add(45*24*time.Hour+time.Duration(minute)*time.Minute))
	}
	testutil.Equal(t, strings.Count(log.String(), "expired on")-before, 1, "lines when keys expire")
}
