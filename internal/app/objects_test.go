package app

import (
	"bytes"
	"context"
	"encoding/json"
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

	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/secret"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
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

// TestObjectLives: objects of all kinds are created, shown, changed, kept across a restart and
// deleted, and each of these requests can be repeated.
func TestObjectLives(t *testing.T) {
	o := newEmpty(t)
	file := filepath.Join(o.volumes, "a")
	o.must(os.WriteFile(file, make([]byte, 1<<20), 0o600))
	const none = `{"changes":[]}`
	key, err := auth.NewKey(32, auth.SHA256)
	o.must(err)
	testutil.Secret(t, key.Reveal())
	kinds := []struct{ path, body, other, shows string }{
		{
			"/v1/listeners/name", `{"transport":"tcp","address":"127.0.0.1","port":0}`,
			`{"transport":"tcp","address":"127.0.0.1","port":0,"on_unavailable":"fail"}`,
			`"on_unavailable":"fail"`,
		},
		{
			"/v1/listeners/tcp%20%5B::1%5D:34420", `{}`, `{"ana_states":{"2":"inaccessible"}}`,
			`"name":"tcp [::1]:34420"`,
		},
		{
			"/v1/referrals/tcp%20%5Bfd00::9%5D:8009", `{}`, `{"hosts":["nqn.2026-11.io.example:h"]}`,
			`"hosts":["nqn.2026-11.io.example:h"]`,
		},
		{
			"/v1/referrals/rdma%20192.0.2.9:4420%20nqn.2026-11.io.example:%20a%2Fb", `{}`,
			`{"hosts":["h"]}`, `"nqn":"nqn.2026-11.io.example: a/b"`,
		},
		{"/v1/hosts/a%2Fb", `{}`, `{"networks":["192.0.2.0/24"]}`, `"networks":["192.0.2.0/24"]`},
		{"/v1/subsystems/a%20%2F", `{}`, `{"serial":"${x}"}`, `"serial":"${x}"`},
		{
			"/v1/subsystems/a%20%2F/namespaces/3", `{"backend":"file","path":"` + file + `"}`,
			`{"backend":"file","path":"` + file + `","read_only":true}`, `"read_only":true`,
		},
		{"/v1/subsystems/a%20%2F/hosts/a%2Fb", ``, `{}`, `"subsystems":["a /"]`},
	}
	for _, k := range kinds {
		o.asks("GET "+k.path, "", 404, "GET /v1/objects lists")
		o.asks("PUT "+k.path+"?dry_run=true", k.body, 200, `"text":`)
		o.asks("GET "+k.path, "", 404, "GET /v1/objects lists")
		o.asks("PUT "+k.path, k.body, 200, `"text":`)
		o.asks("PUT "+k.path, k.body, 200, none)
		o.asks("GET "+k.path, "", 200, `"managed":true`)
		o.asks("PUT "+k.path, k.other, 200, `"changes":`)
		o.asks("PUT "+k.path, k.other, 200, none)
		o.asks("GET "+k.path, "", 200, k.shows)
		o.same()
	}
	o.stop()
	o.start()
	_, _, text := o.request("GET /v1/objects", "")
	var objects []observed.Configured
	o.must(json.Unmarshal([]byte(text), &objects))
	testutil.True(t, len(objects) == len(kinds), "%d objects: %s", len(objects), text)
	for _, k := range kinds {
		testutil.True(t, strings.Contains(text, `"path":"`+k.path+`"`), "no %s in %s", k.path, text)
		o.asks("GET "+k.path, "", 200, k.shows)
		o.asks("PUT "+k.path, k.other, 200, none)
	}
	for i := len(kinds) - 1; i >= 0; i-- {
		path := kinds[i].path
		o.asks("DELETE "+path+"?dry_run=true", "", 200, `"text":`)
		o.asks("GET "+path, "", 200, kinds[i].shows)
		o.asks("DELETE "+path, "", 200, `"text":`)
		o.asks("DELETE "+path, "", 200, none)
		o.asks("GET "+path, "", 404, "there is no "+path)
		o.same()
	}
	rest, err := os.ReadDir(o.managed)
	testutil.True(t, err == nil && len(rest) == 0, "%v are left, %v", rest, err)
}

// TestDryRun: the answer has the changes that would be made, with the affected hosts.
func TestDryRun(t *testing.T) {
	o := newOrchestrated(t)
	o.asks("PUT /v1/subsystems/s", `{"allow_any_host": true}`, 200, "")
	c, err := host.Connect(t.Context(), host.TCP{Addr: o.server.Addrs()[0].AddrPort},
		host.Options{HostNQN: guestNQN, HostID: [16]byte{1}, SubNQN: "s"})
	o.must(err)
	defer c.Close()
	affected := `"affected":[{"host":"` + guestNQN + `","effect":"disconnects","controllers":1,`
	o.asks("PUT /v1/subsystems/s?dry_run=true", `{}`, 200, affected)
	o.asks("DELETE /v1/subsystems/s?dry_run=true", ``, 200, affected)
	o.asks("PUT /v1/subsystems/s?dry_run=true", `{"serial": 7}`, 422, "serial")
	o.asks("GET /v1/hosts/"+guestNQN, ``, 404, "")
	o.asks("GET /v1/subsystems/s/controllers/1", ``, 200, `"nqn":"`+guestNQN)
	o.same()
	testutil.Check(t, testutil.Err(hosttest.GetFeature(t.Context(), c, nvme.FeatureNumberOfQueues)))
}

// TestObjectRefusals: a refused request has a reason, and changes nothing.
func TestObjectRefusals(t *testing.T) {
	o := newOrchestrated(t)
	o.write(`hosts: [{nqn: ` + guestNQN + `}]
discovery: {referrals: [{transport: tcp, address: 192.0.2.1}]}
`)
	_, err := o.client.Reload(t.Context())
	o.must(err)
	const local = `{"transport": "tcp", "address": "127.0.0.1", "port": 0}`
	tcp := `{"transport": "tcp", "address": "192.0.2.1"}`
	o.asks("PUT /v1/listeners/a", local, 200, "")
	o.asks("PUT /v1/subsystems/s", `{"listeners": ["a"]}`, 200, "")
	files := o.files()
	for _, test := range []struct {
		op, body string
		status   int
		want     string
	}{
		{"PUT /v1/hosts/" + guestNQN, `{}`, 409, "nvmf.yaml:7:"},
		{"DELETE /v1/hosts/" + guestNQN, ``, 409, "nvmf.yaml:7:"},
		{"PUT /v1/hosts/" + guestNQN + "/keys/tls_key", `{"key": "x"}`, 409, "nvmf.yaml:7:"},
		{"GET /v1/hosts/" + guestNQN, ``, 200, `"managed":false`},
		{"PUT /v1/referrals/tcp%20192.0.2.1:8009", `{}`, 409, "nvmf.yaml:8:"},
		{"GET /v1/referrals/tcp%20192.0.2.1:8009", ``, 200, `"managed":false`},
		{"PUT /v1/referrals/tcp%20192.0.2.1", `{}`, 422, "is not the name of a referral"},
		{"PUT /v1/referrals/tcp%20host:8009", `{}`, 422, "is not the name of a referral"},
		{"PUT /v1/referrals/udp%20192.0.2.1:8009", `{}`, 422, "transport: "},
		{"PUT /v1/referrals/tcp%200.0.0.0:8009", `{}`, 422, "no address that hosts"},
		{"GET /v1/referrals/x", ``, 404, "there is no /v1/referrals/x"},
		{"PUT /v1/listeners/b", `{}`, 422, "transport: is missing"},
		{"PUT /v1/listeners/b", `{"name": "c"}`, 422, "c here, but b in the path"},
		{"PUT /v1/listeners/1", tcp, 422, "is not the name of a listener"},
		{"PUT /v1/listeners/tcp%20192.0.2.1:0", `{}`, 422, "is not the name of a listener"},
		{"PUT /v1/listeners/tcp%20192.0.2.1:99999", `{}`, 422, "is not the name of a listener"},
		{"PUT /v1/listeners/tcp%20%5Bfe80::1%5D:1", `{}`, 422, "needs its interface"},
		{"PUT /v1/listeners/x%20192.0.2.1:4420", `{}`, 422, "transport: "},
		{"PUT /v1/listeners/tcp%20192.0.2.1:4420", tcp, 200, "+ listener"},
		{"PUT /v1/listeners/tcp%20192.0.2.1:04420", `{}`, 200, `"changes":[]`},
		{"PUT /v1/listeners/b", tcp, 422, "is used already"},
		{"GET /v1/listeners/192.0.2.1:4420", ``, 200, `"name":"tcp 192.0.2.1:4420"`},
		{"DELETE /v1/listeners/tcp%20192.0.2.1:4420", ``, 200, "- listener"},
		{"DELETE /v1/listeners/a", ``, 409, "there is no listener a"},
		{"DELETE /v1/listeners/tcp%20127.0.0.1:0", ``, 422, "is not the name of a listener"},
		{"PUT /v1/hosts/x", `{"dhchap_ctrl_key": "a"}`, 422, "dhchap_ctrl_key: "},
		{"PUT /v1/hosts/x", `{"dhchap_key_file": "/etc/shadow"}`, 422, "cannot name a file"},
		{"PUT /v1/hosts/x/keys/nqn", `{"key": "a"}`, 422, "Use one of: dhchap_key, "},
		{"DELETE /v1/hosts/x/keys/tls_key", ``, 200, `"changes":[]`},
		{"PUT /v1/hosts/" + strings.Repeat("h", 224), ``, 422, "1 to 223 bytes"},
		{"GET /v1/hosts/" + strings.Repeat("h", 224), ``, 404, ""},
		{"GET /v1/hosts/", ``, 404, ""},
		{"PUT /v1/hosts/%FF", ``, 400, "UTF-8"},
		{"PUT /v1/hosts/a?dry_run=1", ``, 400, "neither true nor false"},
		{"GET /v1/subsystems/t", ``, 404, "there is no /v1/subsystems/t"},
		{"GET /v1/subsystems/t/namespaces", ``, 404, ""},
		{"GET /v1/subsystems/s/namespaces", ``, 200, `[]`},
		{"GET /v1/subsystems/s/namespaces/1", ``, 404, ""},
		{"GET /v1/subsystems/s/namespaces/0", ``, 400, "not a number from 1"},
		{"GET /v1/subsystems/s/hosts/h", ``, 404, ""},
		{"GET /v1/subsystems/s/controllers/1", ``, 404, "there is no controller 1"},
		{"GET /v1/ports/999", ``, 404, "there is no port 999"},
		{"GET /v1/ana/9", ``, 404, "there is no ANA group 9"},
		{"PUT /v1/ana/999", `{"state": "optimized"}`, 400, "no ANA group 999"},
		{"PUT /v1/ana/2", `{"state": "x"}`, 400, `no ANA state \"x\"`},
		{"PUT /v1/ana/2/listeners/x", `{"state": "optimized"}`, 404, "no listener"},
		{"PUT /v1/ana/2/listeners/a", `{"state": "inaccessible"}`, 200, `"state":"inaccessible"`},
		{"GET /v1/ana/2/listeners/a", ``, 200, `"state":"inaccessible"`},
		{"DELETE /v1/ana/2", ``, 200, `[]`},
	} {
		o.asks(test.op, test.body, test.status, test.want)
	}
	if now := o.files(); strings.Join(now, "") != strings.Join(files, "") {
		t.Errorf("the directory has %q, had %q", now, files)
	}
	o.same()
	_, header, _ := o.request("POST /v1/listeners/a", "")
	testutil.Equal(t, header.Get("Allow"), "DELETE, GET, HEAD, PUT", "405 allows")
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
