package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/secret"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
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

// TestOrchestratorExample: the commands in docs/orchestrators.md work one after another.
func TestOrchestratorExample(t *testing.T) {
	t.Parallel()
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
