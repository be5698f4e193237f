package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/secret"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// newEmpty makes a target without listeners, hosts and subsystems.
func newEmpty(t *testing.T) *orchestrated {
	t.Helper()
	dir := t.TempDir()
	o := &orchestrated{
		t: t, file: filepath.Join(dir, "nvmf.yaml"), managed: filepath.Join(dir, "managed"),
		volumes: dir, log: new(testutil.Log),
	}
	o.must(os.WriteFile(o.file, []byte("reactors: {count: 1, memory: 8MiB}\ncontrol: {socket: "+
		dir+"/control.sock}\nmanaged: "+o.managed+"\nmanaged_paths: ["+dir+"]\n"), 0o600))
	o.start()
	return o
}

// request makes a request as curl does, and returns the status, the header and the body.
func (o *orchestrated) request(op, body string) (int, http.Header, string) {
	o.t.Helper()
	method, path, _ := strings.Cut(op, " ")
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix",
				filepath.Join(filepath.Dir(o.file), "control.sock"))
		},
	}}
	r, err := http.NewRequestWithContext(o.t.Context(), method, "http://target"+path,
		strings.NewReader(body))
	o.must(err)
	answer, err := client.Do(r)
	o.must(err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	o.must(err)
	o.said.Write(text)
	return answer.StatusCode, answer.Header, string(text)
}

// asks makes a request that must have a status, and an answer with a text.
func (o *orchestrated) asks(op, body string, status int, want string) {
	o.t.Helper()
	if got, _, text := o.request(op, body); got != status || !strings.Contains(text, want) {
		o.t.Error(secret.Mask(fmt.Sprintf("%s %s: %d %s, want %d and %q", op, body, got, text,
			status, want)))
	}
}

// TestFromNothing: an orchestrator creates a subsystem with a listener and an authenticated host
// without any file, rotates the key and removes it. No output has a key.
func TestFromNothing(t *testing.T) {
	o := newEmpty(t)
	keys := make([]*auth.Key, 3)
	for i := range keys {
		k, err := auth.NewKey(32, auth.SHA256)
		o.must(err)
		testutil.Secret(t, k.Reveal())
		keys[i] = k
	}
	const sub, none = "/v1/subsystems/nqn.2026-11.io.example:a", `{"changes":[]}`
	guest := "/v1/hosts/" + guestNQN
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free
	o.must(err)
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	o.must(l.Close())
	o.asks("PUT /v1/listeners/a", fmt.Sprintf(
		`{"transport": "tcp", "address": "127.0.0.1", "port": %d}`, addr.Port()), 200, "+ listener")
	o.asks("PUT "+sub, `{"security": "auth", "listeners": ["a"]}`, 200, "+ subsystem")
	o.asks("PUT "+sub+"/namespaces/1", `{"backend": "ram", "size": "1MiB"}`, 200, "+ namespace")
	o.asks("PUT "+guest+"/keys/dhchap_key", `{"key": "`+keys[0].Reveal()+`"}`, 404, "no host")
	o.asks("PUT "+guest, `{"dhchap_key": "`+keys[0].Reveal()+`"}`, 200, "+ host")
	o.asks("PUT "+sub+"/hosts/"+guestNQN, "", 200, "hosts: + "+guestNQN)
	works := func(want ...bool) {
		t.Helper()
		for i, k := range keys {
			c, err := host.Connect(t.Context(), host.TCP{Addr: addr}, host.Options{
				HostNQN: guestNQN, HostID: [16]byte{1}, SubNQN: "nqn.2026-11.io.example:a", Key: k,
			})
			testutil.True(t, (err == nil) == want[i], "key %d: %v", i, err)
			if err == nil {
				c.Close()
			}
		}
	}
	works(true, false, false)
	o.asks("PUT "+guest, `{"limits": {"iops": 100000}}`, 200, "limits.iops") // the key stays
	works(true, false, false)
	rotate := `{"key": "` + keys[1].Reveal() + `", "old_keys_until": "2200-01-01"}`
	o.asks("PUT "+guest+"/keys/dhchap_key", rotate, 200, "dhchap_old_key: unset")
	works(true, true, false)
	o.asks("PUT "+guest+"/keys/dhchap_key", rotate, 200, none)
	o.asks("PUT "+guest, `{}`, 200, "limits.iops")
	o.stop()
	o.start()
	works(true, true, false)
	o.asks("GET "+guest, "", 200, `"secrets":["dhchap_key","dhchap_old_key"]`)
	o.asks("GET "+sub+"/hosts/"+guestNQN, "", 200, `"controllers":[]`)
	o.asks("DELETE "+guest+"/keys/dhchap_old_key", "", 200, "old_keys_until")
	o.asks("DELETE "+guest+"/keys/dhchap_old_key", "", 200, none)
	works(false, true, false)
	o.asks("PUT "+guest+"/keys/dhchap_key", `{"key": "`+keys[2].Reveal()+`"}`, 200, "dhchap_key")
	works(false, false, true)
	o.asks("GET "+guest+"/keys/dhchap_key", "", 405, "there is no GET of")
	o.asks("DELETE "+guest+"/keys/dhchap_key", "", 200, "hidden")
	works(false, false, false)
	for _, k := range keys { // misplaced
		cut := k.Reveal()[:40]
		o.asks("PUT "+guest+"/keys/dhchap_key", `{"key": "`+cut+`"}`, 422, "dhchap_key: ")
		o.asks("PUT "+guest+"/keys/"+url.PathEscape(cut), `{"key": "x"}`, 422, "no secret")
		o.asks("PUT "+guest+"/keys/dhchap_key", `{"`+k.Reveal()+`": "x"}`, 422, "unknown key")
		o.asks("PUT "+guest, `{"nqn": "`+k.Reveal()+`"}`, 422, "in the path")
		o.asks("PUT "+guest, `{"dhchap_key": {"a": "`+k.Reveal()+`"}}`, 422, "dhchap_key")
		o.asks("PUT "+guest, `{"dhchap_key": "`+k.Reveal(), 422, "not valid JSON")
		o.asks("PUT /v1/hosts/"+url.PathEscape(cut), "", 422, "a key, not an NQN")
		o.asks("PUT /v1/listeners/"+url.PathEscape(cut), "", 422, "is not the name of a listener")
	}
	o.same()
	for name, text := range map[string]string{
		"the log": o.log.String(), "answers": o.said.String(),
	} {
		for i, k := range keys {
			testutil.True(t, !shows(t, text, k), "%s: key %d", name, i)
		}
	}
}

// TestOrchestratorExample: the commands in docs/orchestrators.md work one after another.
func TestOrchestratorExample(t *testing.T) {
	for _, program := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	text, err := os.ReadFile("../../docs/orchestrators.md")
	testutil.Must(t, err)
	o := newEmpty(t)
	_, text, _ = bytes.Cut(text, []byte("## For orchestrators"))
	script := "shopt -s expand_aliases; set -e -o pipefail\n" +
		"nvmf-target() { set -- keys/*; cat $1; rm $1; }\n"
	for range 2 {
		_, rest, _ := bytes.Cut(text, []byte("```sh\n"))
		block, rest, ok := bytes.Cut(rest, []byte("```"))
		text = rest
		testutil.MustTrue(t, ok, "the example is not there")
		script += string(block)
	}
	o.must(os.Mkdir(filepath.Join(o.volumes, "keys"), 0o700))
	for i := range 2 {
		k, err := auth.NewKey(32, auth.SHA256)
		o.must(err)
		testutil.Secret(t, k.Reveal())
		o.must(os.WriteFile(filepath.Join(o.volumes, "keys", fmt.Sprint(i)), []byte(k.Reveal()),
			0o600))
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", strings.NewReplacer(
		"/run/nvmf-target/", o.volumes+"/", "/srv/volumes", o.volumes, "10.0.0.1", "127.0.0.1",
		"4420", "0").Replace(script))
	cmd.Dir = o.volumes
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, secret.Mask(string(out)))
	}
	for _, want := range []string{
		`"state":"ready"`, `"secrets":["dhchap_key","dhchap_old_key"]`, "- subsystem", "- listener",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %s in %s", want, secret.Mask(string(out)))
		}
	}
	if !strings.HasSuffix(string(out), "[]\n") {
		t.Errorf("objects are left: %s", secret.Mask(string(out)))
	}
}
