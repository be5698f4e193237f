package control

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// dial connects without sending a request.
func dial(t *testing.T, s *Server) net.Conn {
	t.Helper()
	c := testutil.Value(net.Dial("unix", s.socket))(t)
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testutil.Patience))
	return c
}

// talk sends a text and returns the status and the body of the answer.
func talk(t *testing.T, s *Server, text string) (int, string) {
	t.Helper()
	c := dial(t, s)
	defer c.Close()
	go func() { _, _ = io.WriteString(c, text) }()
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	if r.StatusCode >= 400 && r.StatusCode < 500 && r.Header.Get("Content-Type") == problemType &&
		!bytes.Contains(b, []byte(`"detail":"`)) {
		t.Errorf("a problem without detail: %s", b)
	}
	return r.StatusCode, string(b)
}

// post is a request with a body.
func post(body string) string {
	return fmt.Sprintf("POST /v1/hosts/disconnect HTTP/1.1\r\nHost: a\r\n"+
		"Content-Length: %d\r\n\r\n%s", len(body), body)
}

// typed is post with a media type.
func typed(mediaType, body string) string {
	return strings.Replace(post(body), "\r\n", "\r\nContent-Type: "+mediaType+"\r\n", 1)
}

// TestGarbage: everything that is not a request is refused, and the next client is served.
func TestGarbage(t *testing.T) {
	s := serve(t, testSource(new(feed)), quiet)
	const get = " HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, test := range map[string]struct {
		text string
		want int
	}{
		"a request":            {"GET /v1/status" + get, 200},
		"another path":         {"GET /v1/nothing" + get, 404},
		"another method":       {"DELETE /v1/status" + get, 405},
		"garbage":              {"\x00\xff\r\n\r\n", 400},
		"a large header":       {"GET / HTTP/1.1\r\nX: " + strings.Repeat("x", 1<<20), 431},
		"a large path":         {"GET /" + strings.Repeat("x", 1<<20) + get, 431},
		"a body":               {post(`{"host":"h"}`), 200},
		"no host":              {post(`{}`), 400},
		"an unknown member":    {post(`{"host":"h","all":true}`), 400},
		"two values":           {post(`{"host":"h"}{}`), 400},
		"an empty body":        {post(``), 400},
		"no JSON":              {post("host: h\n"), 400},
		"deep JSON":            {post(strings.Repeat("[", bodyBytes)), 400},
		"deep JSON in a value": {post(`{"host":` + strings.Repeat(`{"a":`, bodyBytes/8)), 400},
		"a large body":         {post(`{"host":"` + strings.Repeat("h", 8<<20) + `"}`), 413},
		"a name without UTF-8": {"PUT /v1/subsystems/nqn.2026-11.a:%ff" + get, 400},
		"an event ID":          {"GET /v1/events?since=x" + get, 400},
		"a profile as text":    {"GET /v1/debug/pprof/goroutine?debug=2&gc=1" + get, 200},
		"another parameter":    {"DELETE /v1/hosts/a?dry-run=true" + get, 400},
		"one without a value":  {"DELETE /v1/hosts/a?dry_run" + get, 400},
		"one given twice":      {"DELETE /v1/hosts/a?dry_run=false&dry_run=true" + get, 400},
		"a wrong query":        {"DELETE /v1/hosts/a?dry_run=true;recursive=true" + get, 400},
		"one of others":        {"POST /v1/reload?dry_run=true" + get, 400},
		"one that creates":     {"POST /v1/subsystems/a/namespaces?dry_run=true" + get, 400},
		"one of ANA":           {"DELETE /v1/ana/1?dry_run=true" + get, 400},
		"dots in a path":       {"DELETE /v1/subsystems/../hosts/a" + get, 404},
		"a dot in a path":      {"DELETE /v1/hosts/." + get, 404},
		"an empty name":        {"DELETE /v1//hosts/a" + get, 404},
		"YAML":                 {typed("text/yaml", `{"host":"h"}`), 415},
		"a form with files":    {typed("multipart/form-data; boundary=x", `{"host":"h"}`), 415},
		"half a media type":    {typed("application/", `{"host":"h"}`), 415},
		"what curl calls JSON": {typed("application/x-www-form-urlencoded", `{"host":"h"}`), 200},
		"JSON with a charset":  {typed("application/json; charset=utf-8", `{"host":"h"}`), 200},
		"a kind of JSON":       {typed("application/vnd.a+json", `{"host":"h"}`), 200},
	} {
		if got, body := talk(t, s, test.text); got != test.want {
			t.Errorf("%s: status %d, want %d: %.200s", name, got, test.want, body)
		}
	}
}

// TestDryRunIsLogged: the log, and so the audit, distinguishes a request that changes nothing from
// one that does, and has refused requests.
func TestDryRunIsLogged(t *testing.T) {
	var log bytes.Buffer
	s := serve(t, testSource(new(feed)), slog.New(slog.NewTextHandler(&log, nil)))
	for _, query := range []string{"?dry_run=true", "?dryrun=true"} {
		talk(t, s, "DELETE /v1/hosts/a"+query+" HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	testutil.Check(t, s.Close())
	for _, want := range []string{
		`msg="control request" request="DELETE /v1/hosts/a?dry_run=true"`,
		`msg="control request failed" request="DELETE /v1/hosts/a?dryrun=true"`,
	} {
		testutil.True(t, strings.Contains(log.String(), want), "no %s in:\n%s", want, &log)
	}
}

// TestSlowClients: a client that sends nothing, or only part of a header or body, is cut off.
func TestSlowClients(t *testing.T) {
	set(t, &readTimeout, 200*time.Millisecond)
	s := serve(t, testSource(new(feed)), quiet)
	silent, header, body := dial(t, s), dial(t, s), dial(t, s)
	_, _ = io.WriteString(header, "GET /v1/status HTTP/1.1\r\nHost:")
	_, _ = io.WriteString(body, strings.TrimSuffix(post("{}"), "}"))
	for name, c := range map[string]net.Conn{"silent": silent, "header": header, "body": body} {
		_, err := io.ReadAll(c)
		testutil.True(t, !errors.Is(err, os.ErrDeadlineExceeded), "%s: not cut off", name)
	}
}

// set changes a limit until the end of the test.
func set(t *testing.T, limit *time.Duration, to time.Duration) {
	old := *limit
	*limit = to
	t.Cleanup(func() { *limit = old })
}

// TestConnectionsAreBounded: more clients than connections wait until one of these is closed.
func TestConnectionsAreBounded(t *testing.T) {
	s := serve(t, testSource(new(feed)), quiet)
	const request = "GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n"
	var all []net.Conn
	for range maxConnections {
		c := dial(t, s)
		_, _ = io.WriteString(c, request)
		testutil.Value(io.ReadFull(c, make([]byte, 12)))(t)
		all = append(all, c)
	}
	more := dial(t, s)
	_, _ = io.WriteString(more, request)
	_ = more.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	n, err := more.Read(make([]byte, 1))
	testutil.True(t, n == 0 && err != nil, "there is no bound")
	_ = more.SetReadDeadline(time.Now().Add(testutil.Patience))
	all[0].Close()
	testutil.Check(t, testutil.Err(io.ReadFull(more, make([]byte, 12))))
}

// TestFollowersAreBounded: clients that follow events leave connections for others. A client that
// does not read is cut off, at the latest by Close.
func TestFollowersAreBounded(t *testing.T) {
	f := new(feed)
	s := serve(t, testSource(f), quiet)
	const request = "GET /v1/events?follow=true HTTP/1.1\r\nHost: a\r\n\r\n"
	for range maxFollowers {
		c := dial(t, s)
		_, _ = io.WriteString(c, request)
		testutil.Value(io.ReadFull(c, make([]byte, 12)))(t)
	}
	if status, body := talk(t, s, request); status != 503 || !strings.Contains(body, `"hint"`) {
		t.Errorf("one more: %d %s", status, body)
	}
	for range 100 { // 100 MB, which no socket holds
		f.add(observed.Event{Message: strings.Repeat("x", 1<<20)})
	}
	status, _ := talk(t, s, "GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n")
	testutil.True(t, status == 200, "status %d beside followers", status)
	if err := s.Close(); err != nil { // in an hour, if it waits for a write
		t.Error(err)
	}
}

// TestReloadOutlivesItsClient: a client that leaves in the middle of a reload does not end it; the
// end of the server does.
func TestReloadOutlivesItsClient(t *testing.T) {
	src, started, ended := testSource(new(feed)), make(chan struct{}), make(chan error, 1)
	src.Reload = func(ctx context.Context) (Plan, error) {
		close(started)
		<-ctx.Done()
		ended <- ctx.Err()
		return Plan{}, ctx.Err()
	}
	s := serve(t, src, quiet)
	c := dial(t, s)
	_, _ = io.WriteString(c, "POST /v1/reload HTTP/1.1\r\nHost: a\r\n\r\n")
	testutil.Receive(t, "a reload", started)
	c.Close()
	status, _ := talk(t, s, "GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n")
	testutil.True(t, status == 200, "status %d during a reload", status)
	select {
	case <-ended:
		t.Fatal("the reload ended with its client")
	case <-time.After(100 * time.Millisecond): // it would be noticed at once
	}
	testutil.Check(t, s.Close())
	_ = testutil.Receive(t, "its end", ended)
}

// TestSlowReload: clients that repeatedly ask for a reload, while one is in progress, leave
// connections for others.
func TestSlowReload(t *testing.T) {
	src, asked := testSource(new(feed)), make(chan struct{}, 1)
	src.Reload = func(ctx context.Context) (Plan, error) {
		asked <- struct{}{}
		<-ctx.Done()
		return Plan{}, ctx.Err()
	}
	s := serve(t, src, quiet)
	const reload = "POST /v1/reload HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
	for range maxChanging {
		c := dial(t, s)
		_, _ = io.WriteString(c, reload)
		testutil.Receive(t, "a reload", asked)
		c.Close()
	}
	for range maxConnections {
		if status, body := talk(t, s, reload); status != 503 || !strings.Contains(body, `"hint"`) {
			t.Errorf("one more: %d %s", status, body)
		}
	}
	status, _ := talk(t, s, "GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n")
	testutil.True(t, status == 200, "status %d during reloads", status)
}
