package app

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/internal/check"
	"github.com/nvmf-target/nvmf-target/internal/engine"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// shows reports whether a text has a part of a key, in any of the forms in which Go prints it.
func shows(t *testing.T, text string, k interface{ Reveal() string }) bool {
	t.Helper()
	encoded := strings.Split(k.Reveal(), ":")[2]
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
		testutil.True(t, err == nil && answer.StatusCode == http.StatusOK, "%s: %v %v", path,
			answer.Status, err)
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

// servedFile makes readServed possible.
const servedFile = "metrics: {listen: '127.0.0.1:0'}\nweb: {listen: '127.0.0.1:0'}\n"

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

// TestKeys: keys change while a host is connected, which stays connected; the old key is valid
// until it is removed. No output has any of them: no log line, error, warning or change, and no
// answer of the control interface.
func TestKeys(t *testing.T) {
	t.Parallel()
	var keys []*auth.Key
	for range 3 {
		k := testutil.Value(auth.NewKey(32, auth.SHA256))(t)
		testutil.Secret(t, k.Reveal())
		keys = append(keys, k)
	}
	const nqn = "nqn.2026-11.io.nvmf-target:host"
	file := writeConfig(t, "")
	secret := filepath.Join(t.TempDir(), "key")
	testutil.Must(t, os.WriteFile(secret, []byte(keys[2].Reveal()+"\n"), 0o600))
	var out bytes.Buffer
	write := func(hosts string) {
		t.Helper()
		text := strings.Replace(validFile, "allow_any_host: true", "hosts: ["+nqn+"]", 1) +
			servedFile + "hosts: [{nqn: " + nqn + hosts + "}]\n"
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
		testutil.Check(t, check.File(file, nil, &out))
	}
	key := func(name string, k *auth.Key) string { return ", " + name + `: "` + k.Reveal() + `"` }
	write(key("dhchap_key", keys[0]))
	log := new(testutil.Log)
	socket := filepath.Join(t.TempDir(), "control.sock")
	s := started(t, Options{Log: log.Logger(), Load: loader(file), ControlSocket: socket})
	if n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); n != 0 || err != nil {
		t.Errorf("a core file would have the keys: %d %v", n, err)
	}
	defer unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	ctx := testutil.Context(t)
	transport := host.TCP{Addr: s.Addrs()[0].AddrPort}
	connect := func(k, controller *auth.Key) (*host.Controller, error) {
		o := hostOptions(testNQN)
		o.Key, o.ControllerKey = k, controller
		return host.Connect(ctx, transport, o)
	}
	works := func(k, controller *auth.Key, want bool) {
		t.Helper()
		c, err := connect(k, controller)
		if err == nil {
			c.Close()
		} else {
			out.WriteString(err.Error())
		}
		testutil.True(t, (err == nil) == want, "connected: %t (%v), not %t", err == nil, err, want)
	}
	reload := func(hosts string) []config.Change {
		t.Helper()
		write(hosts)
		changes := testutil.Value(s.Reload())(t)
		for _, c := range changes {
			out.WriteString(c.String())
		}
		return changes
	}
	first := testutil.Value(connect(keys[0], nil))(t)
	defer first.Close()
	works(nil, nil, false)
	works(keys[1], nil, false)
	for _, change := range []func(o *host.Options){ // a secret in place of a name
		func(o *host.Options) { o.HostNQN = keys[1].Reveal() },
		func(o *host.Options) { o.SubNQN = keys[1].Reveal() },
	} {
		o := hostOptions(testNQN)
		change(&o)
		testutil.True(t, testutil.Err(host.Connect(ctx, transport, o)) != nil,
			"a key is the name of a host, or of a subsystem")
	}
	testutil.True(t, len(s.recorder.Refusals()) >= 4, "the refusals are not remembered")
	testutil.Equal(t, len(reload(key("dhchap_key", keys[1])+key("dhchap_old_key", keys[0]))), 1,
		"changes")
	works(keys[0], nil, true)
	works(keys[1], nil, true)
	works(keys[1], keys[2], false)
	all := readControl(t, socket)
	testutil.True(t, strings.Contains(all, `"missed":`), "the flight recorder has no queue")
	out.WriteString(all + readServed(t, s))
	reload(key("dhchap_key", keys[1]) + ", dhchap_ctrl_key_file: " + secret)
	works(keys[0], nil, false)
	works(keys[1], keys[2], true)
	testutil.Equal(t, len(reload(key("dhchap_key", keys[1])+", dhchap_ctrl_key_file: "+secret)),
		0, "changes of nothing")
	reload("")
	works(nil, nil, true)
	testutil.Equal(t, first.Err(), nil, "a change of keys has disconnected a host")
	testutil.Must(t, os.Chmod(secret, 0o644))
	write(", limits: {iops: 5}")
	text, _ := os.ReadFile(file)
	text = bytes.Replace(text, []byte("limits"), []byte("dhchap_key_file: "+secret+", limits"), 1)
	_, err := Parse(file, text, nil)
	if err == nil || !strings.Contains(err.Error(), "everybody can read") {
		t.Errorf("a file that everybody can read: %v", err)
	} else {
		out.WriteString(err.Error())
	}
	testutil.True(t, strings.Contains(out.String(), "hidden-"), "no change shows a key")
	for _, k := range keys {
		if all := out.String() + log.String(); shows(t, all, k) {
			t.Error("a key shows: ", all)
		}
		testutil.True(t, shows(t, k.Reveal(), k), "the test finds no key")
	}
}

func needTLS(t *testing.T) {
	t.Helper()
	if err := openssl.Supported(); err != nil {
		t.Skip(err)
	}
}

// TestTLSKeys: keys for TLS change without a restart, the old one is valid until it is removed, and
// no output has any of them. Hosts are told of changes of a listener. No change disconnects
// anybody.
func TestTLSKeys(t *testing.T) {
	t.Parallel()
	needTLS(t)
	const nqn = "nqn.2026-11.io.nvmf-target:host"
	var keys []*auth.TLSKey
	for range 3 {
		k := testutil.Value(auth.NewTLSKey(auth.SHA256))(t)
		testutil.Secret(t, k.Reveal())
		keys = append(keys, k)
	}
	file := writeConfig(t, "")
	secret := filepath.Join(t.TempDir(), "key")
	testutil.Must(t, os.WriteFile(secret, []byte(keys[2].Reveal()+"\n"), 0o600))
	var out bytes.Buffer
	write := func(hosts, tls string) {
		t.Helper()
		text := strings.Replace(validFile, "port: 0", "port: 0, tls: "+tls, 1) +
			servedFile + "hosts: [{nqn: " + nqn + hosts + "}]\n"
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
		testutil.Check(t, check.File(file, nil, &out))
	}
	key := func(name string, k *auth.TLSKey) string { return ", " + name + `: "` + k.Reveal() + `"` }
	log := new(testutil.Log)
	write(key("tls_key", keys[0]), "allowed")
	socket := filepath.Join(t.TempDir(), "control.sock")
	s := started(t, Options{Log: log.Logger(), Load: loader(file), ControlSocket: socket})
	n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	testutil.True(t, n == 0 && err == nil, "a core file would have the keys: %d %v", n, err)
	defer unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	port := s.target.Ports()[0].ID
	// has checks the PSKs that the host may present.
	has := func(policy fabric.TLSPolicy, want ...*auth.TLSKey) {
		t.Helper()
		for _, k := range keys {
			psks := testutil.Value(k.PSKs(nqn, testNQN))(t)
			for _, p := range psks {
				found := slices.ContainsFunc(s.engine.TLSPSKs([]byte(p.Identity)),
					func(o auth.TLSPSK) bool {
						testutil.True(t, o.Identity == p.Identity, "%v instead of %v", o, p)
						return bytes.Equal(o.Secret, p.Secret) && o.Compat == p.Compat
					})
				testutil.True(t, found == slices.Contains(want, k) &&
					found == s.engine.TLSKeyCounts(nqn, k), "%v counts: %t", p, found)
			}
		}
		if got := s.listeners.TLSOf(port); got != policy || s.target.Ports()[0].TLS != policy {
			t.Errorf("TLS is %v, and in the log %v, not %v", got, s.target.Ports()[0].TLS, policy)
		}
	}
	ctx := testutil.Context(t)
	connect := func(k *auth.TLSKey) (*host.Controller, error) {
		tr := host.TCP{Addr: s.Addrs()[0].AddrPort}
		if k != nil {
			tr.PSK = func(host, sub string) (*auth.TLSPSK, error) {
				psks, err := k.PSKs(nqn, testNQN)
				return &psks[len(psks)-1], err // with an identity that does not reveal the key
			}
		}
		return host.Connect(ctx, tr, hostOptions(testNQN))
	}
	works := func(k *auth.TLSKey, want bool) {
		t.Helper()
		c, err := connect(k)
		if err == nil {
			c.Close()
		} else {
			out.WriteString(err.Error())
		}
		testutil.True(t, (err == nil) == want, "connected: %t (%v), not %t", err == nil, err, want)
	}
	reload := func(hosts, tls string, n int) {
		t.Helper()
		write(hosts, tls)
		changes, err := s.Reload()
		testutil.MustTrue(t, err == nil && len(changes) == n, "%v, %v", changes, err)
		for _, c := range changes {
			out.WriteString(c.String())
		}
	}
	has(fabric.TLSAllowed, keys[0])
	var first []*host.Controller
	for _, k := range []*auth.TLSKey{keys[0], nil} {
		c := testutil.Value(connect(k))(t)
		defer c.Close()
		first = append(first, c)
	}
	works(keys[1], false)
	reload(key("tls_key", keys[1])+key("tls_old_key", keys[0]), "allowed", 1)
	has(fabric.TLSAllowed, keys[0], keys[1])
	works(keys[0], true)
	works(keys[1], true)
	if all := readControl(t, socket); !strings.Contains(all, "TLS_AES_128_GCM_SHA256") {
		t.Error("no connection says that it is encrypted")
	} else {
		out.WriteString(all + readServed(t, s))
	}
	reload(", tls_key_file: "+secret+key("tls_old_key", keys[1]), "required", 2)
	has(fabric.TLSRequired, keys[1], keys[2])
	old := ", tls_key_file: " + secret + key("tls_old_key", keys[1]) + ", old_keys_until: "
	reload(old+"2999-12-31", "required", 1)
	has(fabric.TLSRequired, keys[1], keys[2])
	reload(old+"2001-01-01T00:00:00+01:00", "required", 1)
	has(fabric.TLSRequired, keys[2])
	reload(", tls_key_file: "+secret+", keys_until: 2999-12-31", "required", 1)
	has(fabric.TLSRequired, keys[2])
	reload(", tls_key_file: "+secret+", keys_until: 2001-01-01", "required", 1)
	has(fabric.TLSRequired)
	works(keys[2], false)
	testutil.Until(t, "the log says that the keys have expired", func() bool {
		return strings.Contains(log.String(), "the keys of the host have expired: keys_until")
	})
	reload(", tls_key_file: "+secret, "required", 1)
	has(fabric.TLSRequired, keys[2])
	works(keys[0], false)
	works(keys[2], true)
	works(nil, false)
	reload("", "off", 2)
	has(fabric.TLSOff)
	works(nil, true)
	for _, c := range first {
		testutil.Equal(t, c.Err(), nil, "a change has disconnected a host")
	}
	var u fabric.Usage
	testutil.Until(t, "handshakes are counted", func() bool {
		u = s.transports[nvme.TransportTCP].Usage()
		return u.Handshakes+u.FailedHandshakes >= 7
	})
	testutil.True(t, u.Handshakes == 4 && u.FailedHandshakes == 3, "%d handshakes, %d failed",
		u.Handshakes, u.FailedHandshakes)
	for _, identity := range []string{"", "x", "NVMe0R01 a b"} {
		psks := s.engine.TLSPSKs([]byte(identity))
		testutil.True(t, psks == nil, "%q: %v", identity, psks)
	}
	testutil.Must(t, os.Chmod(secret, 0o644))
	for hosts, want := range map[string]string{
		", tls_key_file: " + secret:                          "everybody can read",
		`, tls_key_file: "` + keys[2].Reveal() + `"`:         "not a key",
		`, tls_key: "` + keys[2].Reveal()[:40] + `"`:         "does not end with a colon",
		`}, {nqn: "` + keys[2].Reveal() + `"`:                "a key, not an NQN",
		key("tls_old_key", keys[2]):                          "without tls_key",
		`, dhchap_key: "` + keys[2].Reveal() + `"`:           "begins with DHHC-1:",
		"}]\nmetrics: {listen: " + keys[2].Reveal() + "}\n#": "(hidden)",
	} {
		_, err := Parse(file, []byte(validFile+"hosts: [{nqn: "+nqn+hosts+"}]\n"), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		} else {
			out.WriteString(err.Error())
		}
	}
	testutil.True(t, strings.Contains(out.String(), "hidden-"), "no change shows a key")
	for _, k := range keys {
		all := out.String() + log.String()
		testutil.True(t, !shows(t, all, k), "a key shows:  %v", all)
	}
}

// TestGuardSecrets: with any secret in the configuration the process leaves no core file.
func TestGuardSecrets(t *testing.T) {
	key := testutil.Value(auth.NewKey(32, auth.NoHash))(t)
	tlsKey := testutil.Value(auth.NewTLSKey(auth.NoHash))(t)
	defer unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	for what, tc := range map[string]struct {
		set  func(c *config.Config)
		want int
	}{
		"nothing":       {func(*config.Config) {}, 1},
		"metrics.token": {func(c *config.Config) { c.Metrics.Token[0] = 1 }, 0},
		"metrics.key":   {func(c *config.Config) { c.Metrics.Key = "/key" }, 0},
		"web.token":     {func(c *config.Config) { c.Web.Token[0] = 1 }, 0},
		"a target's token": {func(c *config.Config) {
			c.WebTargets = []config.WebTarget{{Token: func() string { return "" }}}
		}, 0},
		"web.key":        {func(c *config.Config) { c.Web.Key = "/key" }, 0},
		"control.key":    {func(c *config.Config) { c.Control.Key = "/key" }, 0},
		"the dhchap_key": {func(c *config.Config) { c.Hosts[0].Key = key }, 0},
		"the tls_key":    {func(c *config.Config) { c.Hosts[0].TLSKey = tlsKey }, 0},
	} {
		testutil.Must(t, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
		c := &config.Config{Hosts: []config.Host{{}}}
		tc.set(c)
		engine.GuardSecrets(c)
		n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		testutil.True(t, n == tc.want && err == nil, "%s: dumpable is %d, %v", what, n, err)
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
		for minute := range 24 * 60 {
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
	testutil.Equal(t, strings.Count(log.String(), "expired on")-before, 1,
		"lines when keys expire")
}
