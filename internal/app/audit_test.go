package app_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/engine"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// TestAudit: each audited event is one record, in the file and in the log, with the client, its
// address, the event, and the outcome. No record has a key.
func TestAudit(t *testing.T) {
	key, err := auth.NewKey(32, auth.SHA256)
	wrong, err2 := auth.NewKey(32, auth.SHA256)
	testutil.Must(t, errors.Join(err, err2))
	testutil.Secret(t, key.Reveal())
	testutil.Secret(t, wrong.Reveal())
	const nqn = "nqn.2026-11.io.nvmf-target:host"
	dir := t.TempDir()
	path, socket := filepath.Join(dir, "audit"), filepath.Join(dir, "sock")
	file := writeConfig(t, "")
	write := func(hosts string) {
		text := strings.Replace(validFile, "allow_any_host: true", "hosts: ["+nqn+"]", 1) + hosts +
			"\nlog: {level: warn}\nmanaged: " + filepath.Join(dir, "managed") +
			"\naudit: {path: " + path + "}\ncontrol: {socket: " + socket + "}\n"
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	with := "hosts: [{nqn: " + nqn + `, dhchap_key: "` + key.Reveal() + `"}]`
	write(with)
	log, level := new(testutil.Log), new(slog.LevelVar)
	level.Set(slog.LevelWarn)
	s := started(t, app.Options{
		Level: level, Load: loader(file),
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: level})),
	})
	defer unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	ctx := testutil.Context(t)
	client := control.NewClient(socket)
	defer client.Close()
	connect := func(subsystem string, k *auth.Key) error {
		o := hostOptions(subsystem)
		o.HostNQN, o.Key = nqn, k
		h, err := host.Connect(ctx, s.TCP(), o)
		if err == nil {
			h.Close()
		}
		return err
	}
	testutil.Must(t, connect(testNQN, key))
	testutil.MustTrue(t, connect(testNQN, wrong) != nil && connect(testNQN+"-absent", key) != nil,
		"a host was not refused")
	_, err = control.PostDisconnect.To(ctx, client, control.Disconnect{Host: "absent"})
	_, err2 = client.Put(ctx, control.Object{Subsystem: testNQN + "-new"}, nil)
	testutil.Check(t, errors.Join(err, err2))
	_, err = control.PostDrain.To(ctx, client, control.ListenerID{Listener: "absent"})
	testutil.True(t, err != nil, "a listener that does not exist")
	write("")
	testutil.Check(t, testutil.Err(client.Reload(ctx)))
	write(with)
	testutil.Check(t, testutil.Err(s.Reload("signal", "hangup")))
	write("hosts: {}")
	testutil.True(t, testutil.Err(s.Reload("signal", "hangup")) != nil, "a broken file")
	s.Stop()

	all := testutil.JSONLines(t, path)
	text := fmt.Sprint(all)
	for _, k := range []*auth.Key{key, wrong} {
		testutil.True(t, !shows(t, text, k.Reveal()), "a record has a key: %s", text)
	}
	me := fmt.Sprintf(" uid:%d", os.Getuid())
	pid := fmt.Sprintf(" pid:%d ", os.Getpid())
	for _, want := range [][]string{
		{"audit:authentication", "outcome:success", "host:" + nqn, " remote:127.0.0.1:", testNQN},
		{"audit:authentication", "outcome:failure", "host:" + nqn, " remote:127.0.0.1:", testNQN},
		{"audit:refusal", "outcome:failure", "host:" + nqn, testNQN + "-absent"},
		{"audit:administration", "outcome:success", "request:POST /v1/hosts/disconnect", me, pid},
		{"audit:administration", "outcome:success", "request:PUT /v1/subsystems/", me, pid},
		{"audit:administration", "configuration: + subsystem " + testNQN + "-new", me, pid},
		{"audit:administration", "outcome:failure", "request:POST /v1/listeners/drain", me, pid},
		{"audit:key", "outcome:success", "key changed: - host " + nqn, me, pid},
		{"audit:key", "key changed: + host " + nqn + ": dhchap_key: hidden-", "signal:hangup"},
		{"audit:administration", "request:POST /v1/reload", me, pid},
		{"audit:administration", "the configuration was applied", "signal:hangup", "changes:1"},
		{
			"audit:administration", "outcome:failure", "the configuration was not changed",
			"signal:hangup",
		},
	} {
		n := 0
		for _, r := range all {
			one := fmt.Sprint(r)
			fits := true
			for _, part := range want {
				fits = fits && strings.Contains(one, part)
			}
			if fits {
				n++
			}
		}
		testutil.True(t, n == 1, "%d records have %q:\n%s", n, want, text)
	}
	testutil.True(t, strings.Contains(log.String(), "audit=authentication outcome=failure") &&
		!strings.Contains(log.String(), "outcome=success"), "the log at the level of warnings:\n%s",
		log)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

const testSecret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"

// testSecrets are the keys of sequences.
var testSecrets = []string{
	testSecret,
	"DHHC-1:00:dYaw096krZ260qdUC32Qt6MOOJ29Txf41rRRmsWeFd44CmkR:",
	"DHHC-1:00:AcRa6V6AE/2EyOl+dzVY52vag0nwBrNtSp8o3w+afpRQGr+p:",
}

// testTLSKeys are the keys for TLS of sequences.
var testTLSKeys = []string{
	"NVMeTLSkey-1:01:39WfIqopwsE/W3WvJ1cNwnpPmnfA/inWha7162vDmvjnuaAp:",
	"NVMeTLSkey-1:01:kojrX73O7ANb01ctc1MTH15DbEBg7AOxCPP/rIPn/8vgclDS:",
	"NVMeTLSkey-1:01:vSSNw2uszTgLGuTp9VOj+jSDKf8bqP+dQeLGIASTGkWZlZlM:",
}

// TestAccessComesLast: a host has access without a key only after all else has changed.
func TestAccessComesLast(t *testing.T) {
	const both = "hosts: [" + hostA + ", " + hostB + "]"
	l := newLive(t, listenAny, sub(both+", security: auth", inRAM))
	looked := false
	l.Engine().Settings["log.slow_io"] = &engine.Setter{Set: func(*config.Config) error {
		looked = testutil.Err(l.connect(testNQN, hostB, 0)) != nil
		return nil
	}}
	l.apply(listenAny, sub(both, inRAM)+"log: {slow_io: 1s}\n")
	testutil.True(t, looked, "the host had access too early, or nobody has looked")
	testutil.Check(t, testutil.Err(l.connect(testNQN, hostB, 0)))
}

// TestFinalComesLast: a subsystem is gone for good only after all else has changed.
func TestFinalComesLast(t *testing.T) {
	one := sub(anyHosts, inRAM)
	l := newLive(t, listenAny, one+strings.Replace(one, testNQN, testNQN+"-more", 1))
	why := func() string { return fmt.Sprint(testutil.Err(l.connect(testNQN+"-more", hostA, 0))) }
	during := ""
	l.Engine().Settings["log.slow_io"] = &engine.Setter{Set: func(*config.Config) error {
		during = why()
		return nil
	}}
	l.apply(listenAny, one+"log: {slow_io: 1s}\n")
	after := why()
	testutil.True(t, strings.Contains(during, "Connect Invalid Parameters") &&
		!strings.Contains(during, "DNR") && strings.Contains(after, "DNR"), "%q, then %q", during,
		after)
}

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
	client := over(socket)
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
		for _, profile := range []string{"goroutine?debug=2", "heap?debug=1"} { // also allocs
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
func readServed(t *testing.T, s *harness.Harness) string {
	t.Helper()
	lines := show(t, s, "")
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "data: ") {
	}
	state, metrics := lines.Text(), scraped(t, s)
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
